// Import of an archive: finds the folders of workloads, reads their batch sizes and trials, and adds published facts that the archive
// lacks.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/archive/archive.h"
#include "cohort/study/archive/measurements_csv.h"
#include "cohort/study/spec/parameter_configs.h"

namespace cohort::study {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxJsonBytes = size_t{4} << 20, kMaxCsvBytes = size_t{1} << 28;
constexpr int kMaxDepth = 5;               // GROUP/DATASET/MODEL/OPTIMIZER/BATCH.
constexpr size_t kMaxFolders = 1'000'000;  // Visited while searching, or trials of one batch size.
constexpr size_t kMaxTexts = 10'000;       // Goals or warnings of one batch size.
constexpr int64_t kMaxWhole = int64_t{1} << 53;

int64_t read_batch_size(const JsonFields& fields) {
  const int64_t batch_size = fields.natural("batch_size", kMaxWhole);
  if (batch_size < 1) fields.refuse("expected a batch size from 1 up in \"batch_size\", found ", batch_size);
  return batch_size;
}

/// Runs a parser of one text and prefixes its errors with the file.
template <typename Parse>
auto in_file(const std::string& path, const Parse& parse) {
  try {
    return parse();
  } catch (const Error& error) {
    fail(error.code(), path, ": ", error.what());
  }
}

Json read_json(const std::string& path) { return parse_strict_ordered_json(read_small_file(path, kMaxJsonBytes), {.path = path}); }

/// Names of the folders in a folder, without hidden ones.
std::vector<std::string> folders_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code gone;
    std::string name = entries->path().filename().string();
    if (name.starts_with('.') || !entries->is_directory(gone)) continue;
    if (names.size() == kMaxFolders) fail(ErrorCode::kBadInput, folder, ": more than ", kMaxFolders, " folders");
    names.push_back(std::move(name));
  }
  if (error) fail(ErrorCode::kBadInput, "cannot read the folder ", folder, ": ", error.message());
  // Numbers are sorted by value, other names alphabetically.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const auto left = parse_integer(a), right = parse_integer(b);
    if (left && right && *left != *right) return *left < *right;
    return left.has_value() != right.has_value() ? left.has_value() : a < b;
  });
  return names;
}

bool is_batch_folder(const std::string& folder) {
  struct stat status{};
  return ::stat((folder + "/study.json").c_str(), &status) == 0;
}

/// Calls `visit` for every batch folder until it returns false; returns whether it never did.
bool search(const std::string& folder, int depth, size_t& num_seen, const std::function<bool(const std::string&)>& visit) {
  if (is_batch_folder(folder)) return visit(folder);
  if (depth == kMaxDepth) return true;
  for (const std::string& name : folders_in(folder)) {
    if (++num_seen > kMaxFolders) fail(ErrorCode::kBadInput, folder, ": more than ", kMaxFolders, " folders and no end");
    if (!search(folder + "/" + name, depth + 1, num_seen, visit)) return false;
  }
  return true;
}

/// Reads the key "cohort", which holds what the published layout has no key for.
void read_own_keys(const Json& json, const std::string& path, StudyData& study, BatchStudy& batch) {
  const JsonFields fields(json, path);
  batch.num_trials = fields.natural("num_trials", kMaxWhole);
  study.num_train_samples = fields.natural("num_train_samples", kMaxWhole);
  if (!fields.member("seed").is_number_unsigned()) fields.refuse("\"seed\" is not a whole number from 0 up");
  study.seed = fields.member("seed").get<uint64_t>();
  for (const std::string& goal : fields.texts("goals", kMaxTexts))
    study.goals.push_back(in_file(path, [&] { return parse_goal_spec(goal); }));
  if (fields.has("warnings")) study.warnings = fields.texts("warnings", kMaxTexts);
}

void read_measurements(const std::string& path, const Keep& keep, Trial& trial) {
  const std::string text = read_small_file(path, kMaxCsvBytes);
  if (keep.all) {
    trial.measurements = parse_csv(text, path);
    return;
  }
  RecordKeeper records(keep.metrics);
  const auto take = [&](const Measurement& measurement) { records.add(measurement); };
  if (!read_rising_csv(text, path, take)) {
    records = RecordKeeper(keep.metrics);
    for (const Measurement& measurement : parse_csv(text, path)) records.add(measurement);
  }
  records.put_into(trial);
}

/// Whether any analysis reads the trial's measurements: those of diverged trials and of trials that count.
bool is_needed(const Trial& trial, int64_t num_counted, const BatchStudy& batch) {
  return trial.status == TrialStatus::kInfeasible || (trial.status != TrialStatus::kIncomplete && num_counted < batch.num_trials);
}

/// Reads a trial without its measurements.
Trial import_trial(const std::string& folder, int64_t id, const ParameterConfigs& configs) {
  const std::string path = folder + "/metadata.json";
  const Json json = read_json(path);
  const JsonFields fields(json, path);
  Trial trial;
  trial.id = fields.natural("trial_id", kMaxWhole);
  if (trial.id != id) fields.refuse("\"trial_id\" is ", trial.id, ", but the folder's name says ", id);
  const std::string& status = fields.text(fields.has("cohort_status") ? "cohort_status" : "status");
  trial.status = in_file(path, [&] { return parse_trial_status(status); });
  // An abandoned trial is ignored, and its steps may be unknown.
  const bool has_steps = trial.status != TrialStatus::kIncomplete || (fields.has("steps") && !fields.member("steps").is_null());
  trial.steps = has_steps ? fields.natural("steps", kMaxWhole) : 0;
  if (fields.has("cohort_seconds")) trial.seconds = fields.number("cohort_seconds");
  trial.parameters = parse_parameters(fields.member("parameters"), configs, path);
  return trial;
}

bool same_workload(const StudyData& a, const StudyData& b) {
  return a.dataset == b.dataset && a.model == b.model && a.optimizer == b.optimizer;
}

/// Whether a trial that counts reached the goal.
bool is_reached(const StudyData& study, const GoalSpec& goal) {
  const std::vector<StepsToResult> results = steps_to_result(study, goal);
  return std::any_of(results.begin(), results.end(), [](const StepsToResult& result) { return result.steps.has_value(); });
}

StudyData read_batch(const std::string& batch_folder, const Keep& keep, bool& has_own_keys) {
  const std::string path = batch_folder + "/study.json";
  const Json json = read_json(path);
  const JsonFields fields(json, path);
  StudyData study{.dataset = fields.text("dataset"), .model = fields.text("model"), .optimizer = our_optimizer(fields.text("optimizer"))};
  BatchStudy& batch = study.batches.emplace_back();
  batch.batch_size = read_batch_size(fields);
  batch.train_steps = fields.natural("train_steps", kMaxWhole);
  batch.early_stopping = fields.flag("early_stopping");
  const ParameterConfigs configs = parse_parameter_configs(fields.member("parameter_configs"), path);
  batch.space = configs.space;
  batch.num_trials = published_num_trials(study);
  study.num_train_samples = published_num_train_samples(study.dataset);
  has_own_keys = fields.has("cohort");
  if (has_own_keys) read_own_keys(fields.member("cohort"), path, study, batch);
  else study.goals = published_goals(study.dataset, study.model);
  std::set<int64_t> ids;
  int64_t num_counted = 0;
  for (const std::string& name : folders_in(batch_folder)) {
    const auto id = parse_integer(name);
    if (!id || *id < 0) fail(ErrorCode::kBadInput, batch_folder, '/', printable(name), ": a trial's folder has a whole number as its name");
    if (!ids.insert(*id).second) fail(ErrorCode::kBadInput, batch_folder, '/', name, ": trial ", *id, " is there twice");
    const std::string folder = batch_folder + "/" + name;
    Trial& trial = batch.trials.emplace_back(import_trial(folder, *id, configs));
    const bool is_kept = keep.all || is_needed(trial, num_counted, batch);  // Ids increase.
    read_measurements(folder + "/measurements.csv", is_kept ? keep : Keep{.all = false}, trial);
    num_counted += trial.status == TrialStatus::kComplete || trial.status == TrialStatus::kCensored;
  }
  return study;
}

/// The goals of the key "cohort", else the published ones, whether reached or not.
std::vector<GoalSpec> possible_goals(const std::string& path) {
  const Json json = read_json(path);
  const JsonFields fields(json, path);
  if (!fields.has("cohort")) return published_goals(fields.text("dataset"), fields.text("model"));
  StudyData study;
  BatchStudy batch;
  read_own_keys(fields.member("cohort"), path, study, batch);
  return study.goals;
}

/// The data set's name up to its first underscore, which subsets share (mnist, mnist_6875); "" where it cannot be read.
std::string family_of(const ArchivedWorkload& workload) {
  const std::string path = workload.batch_folders.front() + "/study.json";
  try {
    const Json json = read_json(path);
    const std::string dataset = JsonFields(json, path).text("dataset");
    return dataset.substr(0, dataset.find('_'));
  } catch (const Error&) {
    return "";  // The import of the workload reports the error.
  }
}

}  // namespace

StudyData import_batch(const std::string& batch_folder, const Keep& keep) {
  bool has_own_keys = false;
  return read_batch(batch_folder, keep, has_own_keys);
}

Keep keep_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals, bool may_choose) {
  Keep keep = {.all = false};
  if (may_choose)
    for (const Metric metric : {kValError, kValPrecision, kValLoss}) keep.metrics.set(metric);
  for (const GoalSpec& goal : goals) keep.metrics.set(goal.metric);
  for (const ArchivedWorkload& workload : workloads) {
    for (const std::string& folder : workload.batch_folders) {
      try {
        for (const GoalSpec& goal : possible_goals(folder + "/study.json")) keep.metrics.set(goal.metric);
      } catch (const Error&) {
        continue;  // The import of the workload reports the error.
      }
    }
  }
  return keep;
}

std::vector<ArchivedWorkload> find_workloads(const std::string& folder) {
  std::vector<ArchivedWorkload> workloads;
  std::map<std::string, size_t> places;
  size_t num_seen = 0;
  search(folder, 0, num_seen, [&](const std::string& batch_folder) {
    const std::string parent = parent_folder(batch_folder);
    const auto [place, is_new] = places.try_emplace(parent, workloads.size());
    if (is_new) workloads.push_back({parent, {}});
    workloads[place->second].batch_folders.push_back(batch_folder);
    return true;
  });
  if (workloads.empty())
    fail(ErrorCode::kBadInput, folder, " is not an archive of studies: no study.json in it or in up to ", kMaxDepth, " folders below it");
  return workloads;
}

StudyData import_workload(const ArchivedWorkload& workload, const Keep& keep) {
  StudyData study;
  bool has_own_keys = false;
  for (const std::string& folder : workload.batch_folders) {
    bool has_keys = false;
    StudyData part = read_batch(folder, keep, has_keys);
    if (study.batches.empty()) {
      study = std::move(part);
      has_own_keys = has_keys;  // Whose goals are the study's.
      continue;
    }
    if (!same_workload(study, part))
      fail(ErrorCode::kBadInput, folder, "/study.json: is of ", part.dataset, '/', part.model, '/', part.optimizer, ", but ",
           workload.batch_folders.front(), "/study.json of ", study.dataset, '/', study.model, '/', study.optimizer);
    study.batches.push_back(std::move(part.batches.front()));
    for (std::string& warning : part.warnings)
      if (std::find(study.warnings.begin(), study.warnings.end(), warning) == study.warnings.end())
        study.warnings.push_back(std::move(warning));
  }
  std::stable_sort(study.batches.begin(), study.batches.end(),
                   [](const BatchStudy& a, const BatchStudy& b) { return a.batch_size < b.batch_size; });
  for (size_t i = 1; i < study.batches.size(); ++i)
    if (study.batches[i - 1].batch_size == study.batches[i].batch_size)
      fail(ErrorCode::kBadInput, workload.folder, ": batch size ", study.batches[i].batch_size, " is there twice");
  // A published goal that no trial here reaches belongs to another study with the same names.
  if (!has_own_keys) std::erase_if(study.goals, [&](const GoalSpec& goal) { return !is_reached(study, goal); });
  return study;
}

std::vector<StudyData> import_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals,
                                        bool may_choose) {
  std::map<std::string, std::vector<ArchivedWorkload>> families;
  std::vector<std::string> names;
  for (const ArchivedWorkload& workload : workloads) families[names.emplace_back(family_of(workload))].push_back(workload);
  std::map<std::string, Keep> keeps;
  for (const auto& [name, members] : families) keeps[name] = keep_for_goals(members, goals, may_choose);
  std::vector<StudyData> studies;
  std::set<std::string> chosen;  // Families where a goal has to be chosen.
  for (size_t i = 0; i < workloads.size(); ++i) {
    studies.push_back(import_workload(workloads[i], keeps[names[i]]));
    const StudyData& study = studies.back();
    if (study.goals.empty() || !can_answer(study, study.goals.front())) chosen.insert(names[i]);
  }
  for (size_t i = 0; i < workloads.size() && !may_choose; ++i)
    if (chosen.contains(names[i])) studies[i] = import_workload(workloads[i], keep_for_goals(families[names[i]], goals, true));
  return studies;
}

bool is_archive(const std::string& folder) {
  size_t num_seen = 0;
  try {
    return !search(folder, 0, num_seen, [](const std::string&) { return false; });
  } catch (const Error&) {
    return false;  // The folder is missing or unreadable.
  }
}

int64_t published_num_trials(const StudyData& study) {
  const bool has_50 = study.dataset == "common_crawl" || (study.dataset == "lm1b" && study.model == "lstm") ||
                      (study.dataset == "lm1b" && study.model == "transformer_shallow" && study.optimizer == "sgd");
  return has_50 ? 50 : 100;
}

int64_t published_num_train_samples(const std::string& dataset) {
  static const std::map<std::string, int64_t> sizes = {{"mnist", 55'000},
                                                       {"mnist_6875", 6'875},
                                                       {"mnist_13750", 13'750},
                                                       {"mnist_27500", 27'500},
                                                       {"mnist_solution_quality", 55'000},
                                                       {"fashion_mnist_solution_quality", 55'000},
                                                       {"imagenet_half_images", 640'583},
                                                       {"mnist_55000", 55'000},
                                                       {"fashion_mnist", 55'000},
                                                       {"cifar_10", 45'000},
                                                       {"imagenet", 1'281'167},
                                                       {"open_images_v4", 4'526'492},
                                                       {"lm1b", 30'301'028}};
  const auto found = sizes.find(dataset);
  return found == sizes.end() ? 0 : found->second;
}

std::vector<GoalSpec> published_goals(const std::string& dataset, const std::string& model) {
  const auto goals = [](Metric metric, std::initializer_list<double> values) {
    std::vector<GoalSpec> list;
    for (const double value : values) list.push_back({metric, value});
    return list;
  };
  if (dataset == "mnist" && model.starts_with("fc_")) return goals(kValError, {0.03});
  if (dataset == "mnist" && model.starts_with("simple_cnn"))
    return goals(kValError, {0.01, 0.03});  // 0.03: to compare with fully connected models.
  if (dataset == "mnist_solution_quality") return goals(kValError, {0.01});
  if (dataset == "mnist_6875" || dataset == "mnist_13750" || dataset == "mnist_27500" || dataset == "mnist_55000")
    return goals(kValError, {0.02});
  if (dataset == "fashion_mnist" || dataset == "fashion_mnist_solution_quality") return goals(kValError, {0.1});
  if (dataset == "cifar_10") return goals(kValError, {0.3});
  if (dataset == "imagenet" && model == "resnet_50")
    return goals(kValError, {0.25, 0.3, 0.35});  // 0.3: to compare with its halves; 0.35: with VGG-11.
  if (dataset == "imagenet" && model == "vgg_11") return goals(kValError, {0.35});
  if (dataset == "imagenet_half_images" || dataset == "imagenet_half_classes") return goals(kValError, {0.3});
  if (dataset == "open_images_v4") return {{kValPrecision, 0.31}};
  if (dataset == "lm1b" && (model == "transformer_wide" || model == "transformer_narrow_and_shallow")) return goals(kValLoss, {4.2});
  if (dataset == "lm1b" && model == "lstm") return goals(kValLoss, {3.9});
  if (dataset == "lm1b") return goals(kValLoss, {3.9, 4.2});  // 4.2: to compare with other sizes.
  if (dataset == "common_crawl") return goals(kValLoss, {3.9});
  return {};
}

}  // namespace cohort::study
