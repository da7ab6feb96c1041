// Export of a study, reading a study from a store or an archive, and the record keeper of imports.
//
// Everything is written below one temporary folder beside the data sets, then each batch size is renamed to its place, so that a reader or
// a second export never sees an incomplete batch size.
#include "cohort/study/archive/archive.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/study/archive/measurements_csv.h"
#include "cohort/study/spec/parameter_configs.h"
#include "cohort/study/store/store.h"

namespace cohort::study {
namespace {

namespace fs = std::filesystem;

void check_name(const std::string& name, const char* what) {
  const bool is_plain = !name.empty() && name.size() <= 200 && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char character) {
    return character > ' ' && character < 127 && character != '/' && character != '\\';
  });
  if (!is_plain)
    fail(ErrorCode::kBadInput, "export: the ", what, "'s name ", quote_text(name),
         " is not valid for a folder: printable ASCII without blanks, slashes and a leading dot");
}

void make_folders(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kFailed, "cannot make the folder ", folder, ": ", error.message());
}

void write_new_file(const std::string& path, const std::string& content) {
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  write_all(file.get(), content.data(), content.size(), path);
}

Json study_json(const StudyData& study, const BatchStudy& batch) {
  Json goals = Json::array();
  for (const GoalSpec& goal : study.goals) goals.push_back(goal.text());
  Json own = {{"goals", goals}, {"num_train_samples", study.num_train_samples}, {"num_trials", batch.num_trials}, {"seed", study.seed}};
  if (!study.warnings.empty()) own["warnings"] = study.warnings;
  return {{"batch_size", batch.batch_size},
          {"cohort", own},
          {"dataset", study.dataset},
          {"early_stopping", batch.early_stopping},
          {"model", study.model},
          {"optimizer", archive_optimizer(study.optimizer)},
          {"parameter_configs", to_json(batch.space)},
          {"train_steps", batch.train_steps}};
}

Json trial_json(const Trial& trial, const SearchSpace& space) {
  // Readers of the published archive know three statuses. A censored trial counts like a complete one.
  const TrialStatus known = trial.status == TrialStatus::kCensored ? TrialStatus::kComplete : trial.status;
  Json json;
  if (trial.seconds != 0 && std::isfinite(trial.seconds)) json["cohort_seconds"] = trial.seconds;
  if (known != trial.status) json["cohort_status"] = name_of(trial.status);
  json["parameters"] = to_json(trial.parameters, space);
  json["status"] = name_of(known);
  json["steps"] = trial.steps;
  json["trial_id"] = trial.id;
  return json;
}

/// The columns of a batch size: the metrics that any of its trials has, so that all its files have the same columns.
std::vector<Metric> measured_metrics(const BatchStudy& batch) {
  std::vector<Metric> metrics;
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    const auto is_measured = [&](const Measurement& measurement) { return !std::isnan(measurement.values[metric]); };
    if (std::any_of(batch.trials.begin(), batch.trials.end(),
                    [&](const Trial& trial) { return std::any_of(trial.measurements.begin(), trial.measurements.end(), is_measured); }))
      metrics.push_back(static_cast<Metric>(metric));
  }
  return metrics;
}

void write_batch(const StudyData& study, const BatchStudy& batch, const std::string& folder) {
  make_folders(folder);
  write_new_file(folder + "/study.json", study_json(study, batch).dump(2) + "\n");
  const std::vector<Metric> metrics = measured_metrics(batch);
  for (const Trial& trial : batch.trials) {
    const std::string trial_folder = concat(folder, '/', trial.id);
    make_folders(trial_folder);
    write_new_file(trial_folder + "/metadata.json", trial_json(trial, batch.space).dump(2) + "\n");
    write_new_file(trial_folder + "/measurements.csv", to_csv(trial.measurements, metrics));
  }
}

/// A temporary folder that is removed on destruction.
struct Workspace {
  explicit Workspace(const std::string& root) : path(root + "/.export." + random_name()) { make_folders(path); }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  std::string path;
};

}  // namespace

std::string export_archive(const StudyData& study, const std::string& folder) {
  check_name(study.dataset, "data set");
  check_name(study.model, "model");
  check_name(study.optimizer, "optimizer");
  if (study.batches.empty()) fail(ErrorCode::kBadInput, "export: the study has no batch size");
  const std::string workload = concat(folder, '/', study.dataset, '/', study.model, '/', archive_optimizer(study.optimizer));
  for (const BatchStudy& batch : study.batches)
    if (const std::string path = concat(workload, '/', batch.batch_size); fs::exists(fs::symlink_status(path)))
      fail(ErrorCode::kBadInput, "export: ", path, " is there already; give another folder, or remove it");
  make_folders(folder);
  const Workspace workspace(folder);
  for (const BatchStudy& batch : study.batches) write_batch(study, batch, concat(workspace.path, '/', batch.batch_size));
  make_folders(workload);
  for (const BatchStudy& batch : study.batches) {
    const std::string from = concat(workspace.path, '/', batch.batch_size), to = concat(workload, '/', batch.batch_size);
    std::error_code error;
    fs::rename(from, to, error);
    if (error) fail(ErrorCode::kFailed, "cannot rename ", from, " to ", to, ": ", error.message());
  }
  return workload;
}

// Reading a study from a store or from the folder of an archive.
namespace {

/// None where the folder holds a store.
std::optional<ArchivedWorkload> archived_workload(const std::string& folder) {
  if (::access((folder + "/study.db").c_str(), F_OK) == 0) return std::nullopt;
  if (::access(folder.c_str(), F_OK) != 0) fail(ErrorCode::kBadInput, folder, ": there is no such folder");
  if (!is_archive(folder))
    fail(ErrorCode::kBadInput, folder, " holds no study: neither study.db nor an archive's study.json in it or below it");
  const std::vector<ArchivedWorkload> workloads = find_workloads(folder);
  if (workloads.size() > 1)
    fail(ErrorCode::kBadInput, folder, " holds ", workloads.size(), " workloads; give one, such as ", workloads.front().folder);
  return workloads.front();
}

}  // namespace

StudyData read_study(const std::string& folder) {
  const std::optional<ArchivedWorkload> workload = archived_workload(folder);
  return workload ? import_workload(*workload) : Store::open_readonly(folder).read();
}

StudyData read_study_for_goal(const std::string& folder, const std::optional<GoalSpec>& goal) {
  const std::optional<ArchivedWorkload> workload = archived_workload(folder);
  if (!workload) return Store::open_readonly(folder).read();
  return import_workload(*workload, keep_for_goals({*workload}, goal ? std::vector{*goal} : std::vector<GoalSpec>()));
}

void RecordKeeper::keep(const Measurement& measurement, const WholeCourse::Place& place) {
  kept_.push_back(measurement);
  whole_.places.push_back(place);
}

void RecordKeeper::add(const Measurement& measurement) {
  const bool is_first = whole_.num_measurements++ == 0;
  bool is_record = is_first && metrics_.any();
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    const double value = measurement.values[metric];
    if (std::isnan(value)) continue;
    whole_.measured.set(metric);
    if (!metrics_[metric]) continue;
    if (has_best_[metric] && !is_better(value, best_[metric], static_cast<Metric>(metric))) continue;
    has_best_.set(metric);
    best_[metric] = value;
    is_record = true;
  }
  const WholeCourse::Place place = {.number = last_place_.number + (measurement.step > 0), .step_before = is_first ? 0 : last_.step};
  if (is_record) keep(measurement, place);
  last_ = measurement;
  last_place_ = place;
  last_is_kept_ = is_record || metrics_.none();
}

void RecordKeeper::put_into(Trial& trial) {
  if (!last_is_kept_) keep(last_, last_place_);
  trial.measurements = std::vector<Measurement>(kept_.begin(), kept_.end());  // Without spare capacity.
  whole_.places.shrink_to_fit();
  trial.whole = std::move(whole_);
}

}  // namespace cohort::study
