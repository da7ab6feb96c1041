// study export, study import: between a study's folder and the public layout of raw data.

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/study.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/archive/archive.h"
#include "cohort/study/store/store.h"

namespace cohort {
namespace {

using study::ArchivedWorkload;
using study::BatchStudy;
using study::StudyData;
using study::Trial;
using study::TrialStatus;

struct Counts {
  int64_t trials = 0, complete = 0, censored = 0, infeasible = 0, incomplete = 0, measurements = 0;

  explicit Counts(const BatchStudy& batch) {
    const auto count = [&](TrialStatus status) {
      return std::count_if(batch.trials.begin(), batch.trials.end(), [&](const Trial& trial) { return trial.status == status; });
    };
    trials = static_cast<int64_t>(batch.trials.size());
    complete = count(TrialStatus::kComplete);
    censored = count(TrialStatus::kCensored);
    infeasible = count(TrialStatus::kInfeasible);
    incomplete = count(TrialStatus::kIncomplete);
    for (const Trial& trial : batch.trials) measurements += study::num_measurements(trial);
  }
};

const std::string& only_folder(const Arguments& arguments, const char* action, const char* what) {
  if (arguments.positional.size() != 2) fail(ErrorCode::kBadInput, "study ", action, ": give one ", what);
  return arguments.positional[1];
}

void print_batch(const StudyData& study, const BatchStudy& batch, const char* event, bool is_json) {
  const Counts counts(batch);
  if (is_json) {
    print_line(Json{{"event", event},
                    {"dataset", study.dataset},
                    {"model", study.model},
                    {"optimizer", study.optimizer},
                    {"batch_size", batch.batch_size},
                    {"trials", counts.trials},
                    {"complete", counts.complete},
                    {"censored", counts.censored},
                    {"infeasible", counts.infeasible},
                    {"incomplete", counts.incomplete},
                    {"measurements", counts.measurements}},
               true);
  } else {
    std::printf("%10s %8s %9s %9s %11s %11s %13s\n", with_commas(batch.batch_size).c_str(), with_commas(counts.trials).c_str(),
                with_commas(counts.complete).c_str(), with_commas(counts.censored).c_str(), with_commas(counts.infeasible).c_str(),
                with_commas(counts.incomplete).c_str(), with_commas(counts.measurements).c_str());
  }
}

void print_heading(const StudyData& study, bool is_json) {
  if (is_json) return;
  std::printf("%s\n", printable(concat(study.dataset, " / ", study.model, " / ", study.optimizer)).c_str());
  std::printf("%10s %8s %9s %9s %11s %11s %13s\n", "batch size", "trials", "complete", "censored", "infeasible", "incomplete",
              "measurements");
}

/// Prints a line for each batch size without keeping measurements in memory. Returns the folder of each.
std::map<int64_t, std::string> check_workload(const ArchivedWorkload& workload, bool is_json) {
  std::string name;
  std::map<int64_t, std::string> sizes;
  for (const std::string& folder : workload.batch_folders) {
    const StudyData part = study::import_batch(folder, {.all = false});
    const std::string part_name = concat(part.dataset, '/', part.model, '/', part.optimizer);
    if (name.empty()) {
      print_warnings(part.warnings, is_json);
      print_heading(part, is_json);
    } else if (name != part_name) {
      fail(ErrorCode::kBadInput, folder, "/study.json: is of ", printable(part_name), ", but its neighbours of ", printable(name));
    }
    name = part_name;
    const int64_t size = part.batches.front().batch_size;
    if (!sizes.emplace(size, folder).second) fail(ErrorCode::kBadInput, workload.folder, ": batch size ", size, " is there twice");
    print_batch(part, part.batches.front(), "batch", is_json);
  }
  return sizes;
}

}  // namespace

int study_export(const Arguments& arguments) {
  const std::string& folder = only_folder(arguments, "export", "folder of a study");
  const std::string out = arguments.option("out", "");
  if (out.empty()) fail(ErrorCode::kBadInput, "study export: --out FOLDER is missing: the archive's root");
  const bool is_json = arguments.options.contains("json");
  const StudyData study = study::read_study(folder);
  check_writable_folder(out);
  const std::string workload = study::export_archive(study, out);
  print_warnings(study.warnings, is_json);
  print_heading(study, is_json);
  for (const BatchStudy& batch : study.batches) print_batch(study, batch, "export", is_json);
  if (!is_json) std::printf("wrote %s: %zu batch sizes\n", workload.c_str(), study.batches.size());
  return 0;
}

int study_import(const Arguments& arguments) {
  const std::string& folder = only_folder(arguments, "import", "folder of an archive");
  const std::string out = arguments.option("out", "");
  const bool is_json = arguments.options.contains("json");
  const std::vector<ArchivedWorkload> workloads = study::find_workloads(folder);
  if (!out.empty() && workloads.size() != 1)
    fail(ErrorCode::kBadInput, "study import --out: ", folder, " holds ", workloads.size(), " workloads, but a study is of one; give ",
         workloads.front().folder, " or another of them");
  if (!out.empty()) check_writable_folder(out);
  for (const ArchivedWorkload& workload : workloads) {
    const std::map<int64_t, std::string> folders = check_workload(workload, is_json);
    if (out.empty()) continue;
    // Goals that are reached come from records of all batch sizes; the store then reads one batch size after the other.
    const StudyData records = study::import_workload(workload, study::keep_for_goals({workload}, {}));
    study::Store::create(out, records, [&](int64_t size) { return std::move(study::import_batch(folders.at(size)).batches.front()); });
  }
  if (is_json) return 0;
  if (out.empty()) std::printf("%zu workloads, all readable\n", workloads.size());
  else std::printf("wrote %s\n", out.c_str());
  return 0;
}

}  // namespace cohort
