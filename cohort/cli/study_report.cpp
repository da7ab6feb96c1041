#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/study.h"
#include "cohort/report/noise_run.h"
#include "cohort/report/study/study_page.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/archive/archive.h"
#include "cohort/study/store/store.h"
#include "cohort/tune/step_times.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using study::StudyData;
using study::StudySpec;

/// Contents of the folders of the command line.
struct Found {
  std::vector<report::ReportedStudy> studies;
  std::string first_folder;
  bool first_is_store = false;
  std::optional<StudySpec> first_spec;  ///< Unset for an archive, or a store made from one.
  std::vector<report::NoiseScaleNote> noise_scales;
  std::vector<std::string> warnings;
};

bool is_store(const std::string& folder) { return fs::exists(fs::path(folder) / "study.db"); }

std::optional<StudySpec> spec_of(const study::Store& store) {
  try {
    return store.spec();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    return std::nullopt;
  }
}

/// The note "noise_scale": a list of {"noise_scale": samples, "step": n, "loss": x}.
std::vector<report::NoiseScaleNote> noise_scales_of(const study::Store& store, const std::string& folder) {
  std::vector<report::NoiseScaleNote> out;
  const auto text = store.note("noise_scale");
  if (!text) return out;
  const Json list = Json::parse(*text, nullptr, false);
  if (!list.is_array()) fail(ErrorCode::kBadInput, folder, ": the note noise_scale is not a list");
  for (const Json& one : list) {
    if (!one.is_object() || !one.contains("noise_scale") || !one["noise_scale"].is_number()) continue;
    report::NoiseScaleNote note{.noise_scale = one["noise_scale"].get<double>()};
    if (one.contains("step") && one["step"].is_number()) note.step = static_cast<int64_t>(one["step"].get<double>());
    if (one.contains("loss") && one["loss"].is_number()) note.loss = one["loss"].get<double>();
    if (std::isfinite(note.noise_scale)) out.push_back(note);
  }
  return out;
}

/// The store is closed again before anything forks.
report::ReportedStudy read_store(const std::string& folder, bool is_first, Found& found) {
  const study::Store store = study::Store::open_readonly(folder);
  if (is_first) {
    found.first_spec = spec_of(store);
    found.noise_scales = noise_scales_of(store, folder);
  }
  return {store.read(), folder};
}

/// Keeps the noise scale of --noise-run RUN with the study, so that later reports show it too.
void keep_noise_run(const Arguments& arguments) {
  const std::string run = arguments.option("noise-run", "");
  if (run.empty()) return;
  const std::string& folder = arguments.positional[1];
  if (!is_store(folder))
    fail(ErrorCode::kBadInput, "study report: --noise-run keeps a note in a study's folder, and ", folder, " is not one");
  const std::string note = report::noise_note(report::read_noise_run(run));
  study::Store::open_existing(folder).set_note("noise_scale", note);
}

/// Reads stores first: studies that are overlaid are evaluated for each other's goals, and archives keep only the trials that these need.
Found read_folders(const Arguments& arguments, std::vector<study::GoalSpec> goals) {
  if (arguments.positional.size() < 2) fail(ErrorCode::kBadInput, "study report: give a study's folder: cohort study report DIR...");
  keep_noise_run(arguments);
  const std::vector<std::string> folders(arguments.positional.begin() + 1, arguments.positional.end());
  Found found = {.first_folder = folders.front(), .first_is_store = is_store(folders.front())};
  std::vector<std::vector<report::ReportedStudy>> studies(folders.size());
  std::vector<size_t> num_workloads(folders.size());
  std::vector<study::ArchivedWorkload> workloads;
  bool may_choose = false;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (is_store(folders[i])) {
      studies[i].push_back(read_store(folders[i], i == 0, found));
      const std::vector<study::GoalSpec>& own = studies[i][0].data.goals;
      goals.insert(goals.end(), own.begin(), own.end());
      may_choose |= own.empty() || !study::can_answer(studies[i][0].data, own.front());
    } else if (study::is_archive(folders[i])) {
      const std::vector<study::ArchivedWorkload> found_here = study::find_workloads(folders[i]);
      num_workloads[i] = found_here.size();
      workloads.insert(workloads.end(), found_here.begin(), found_here.end());
    } else {
      fail(ErrorCode::kBadInput, folders[i], ": neither a study (study.db) nor an archive of studies (study.json)");
    }
  }
  std::vector<StudyData> imported = study::import_for_goals(workloads, goals, may_choose);
  auto next = imported.begin();
  for (size_t i = 0; i < folders.size(); ++i) {
    std::move(studies[i].begin(), studies[i].end(), std::back_inserter(found.studies));
    for (size_t k = 0; k < num_workloads[i]; ++k, ++next) {
      std::string name = join({next->dataset, next->model, next->optimizer}, "/");
      found.studies.push_back({std::move(*next), std::move(name)});
    }
  }
  if (found.studies.empty()) fail(ErrorCode::kBadInput, found.first_folder, ": the archive holds no study");
  for (const report::ReportedStudy& study : found.studies)
    for (const std::string& warning : study.data.warnings)
      found.warnings.push_back((found.studies.size() > 1 ? study.name + ": " : "") + warning);
  return found;
}

int64_t bytes_of(const Found& found) {
  std::error_code error;
  int64_t total = 0;
  if (found.first_is_store) {
    for (const char* name : {"study.db", "study.db-wal"}) {
      const auto size = fs::file_size(fs::path(found.first_folder) / name, error);
      if (!error) total += static_cast<int64_t>(size);
    }
    return total;
  }
  for (const auto& entry : fs::recursive_directory_iterator(found.first_folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name != "study.json" && name != "metadata.json" && name != "measurements.csv") continue;
    const auto size = entry.file_size(error);
    if (!error) total += static_cast<int64_t>(size);
  }
  return total;
}

std::vector<std::string> commands_of(const Found& found, const Arguments& arguments) {
  std::string report = "cohort study report";
  if (!found.first_spec) {
    for (size_t i = 1; i < arguments.positional.size(); ++i) report += " " + shell_quoted(arguments.positional[i]);
    return {report};
  }
  std::string folder = found.first_folder;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const std::string again = shell_quoted(folder + "-again");
  return {"cohort study run " + shell_quoted(folder + "/study.toml") + " --out " + again, report + " " + again};
}

std::vector<int64_t> reached_sizes(const StudyData& data, const study::GoalSpec& goal) {
  std::vector<int64_t> sizes;
  for (const study::StepsToResult& result : study::steps_to_result(data, goal)) {
    if (result.steps) sizes.push_back(result.batch_size);
  }
  return sizes;
}

/// Step times, measured now for the workload of a single store; else those of an earlier report.
std::vector<study::StepTime> step_times(const Found& found, const Arguments& arguments, const std::optional<study::GoalSpec>& goal) {
  const StudyData& data = found.studies.front().data;
  const bool may_measure = arguments.positional.size() == 2 && found.first_spec && !arguments.options.contains("no-times");
  const std::string path = found.first_folder + "/step_times.csv";
  if (!may_measure && arguments.options.contains("workers"))
    fail(ErrorCode::kBadInput, "study report: --workers is for the step times that are measured of one study's folder; leave it out");
  if (!may_measure) return found.first_is_store && fs::exists(path) ? study::read_step_times(path) : std::vector<study::StepTime>();
  const auto& goals = found.first_spec->goals;
  const std::vector<int64_t> sizes = goal || !goals.empty() ? reached_sizes(data, goal ? *goal : goals.front()) : std::vector<int64_t>();
  if (sizes.empty() || found.first_spec->is_noisy_quadratic()) return {};
  if (!arguments.options.contains("quiet"))
    log_info(concat("measuring step times of ", sizes.size(), " batch sizes, two minutes at most; --no-times leaves it out"));
  // 0 workers: one for each core.
  return measure_step_times(*found.first_spec, sizes, {.max_workers = static_cast<int>(arguments.integer_option("workers", 0, 0, 4096))});
}

Json optional_number(const std::optional<double>& value) { return value ? finite_json(*value) : Json(nullptr); }

void print_regimes(const report::StudyReport& report) {
  if (!report.has_goal) return;
  Json flags = Json::array();
  for (const study::Flag& flag : report.flags)
    flags.push_back({{"rule", flag.rule}, {"batch_size", flag.batch_size}, {"text", flag.text()}, {"refuses", flag.refuses}});
  print_line({{"event", "regimes"},
              {"study", report.name},
              {"goal", report.analysis.goal.text()},
              {"perfect_to", optional_number(report.analysis.regimes.perfect_to)},
              {"flat_from", optional_number(report.analysis.regimes.flat_from)},
              {"refused", report.analysis.regimes.refused},
              {"flags", flags}});
}

/// Paths of the tables for planners; empty for one that was not written.
struct PlannerFiles {
  std::string steps_curve, step_times;
};

void print_lines(const report::StudyReport& report, const PlannerFiles& files) {
  print_regimes(report);
  for (const report::StudyReport& other : report.others) print_regimes(other);
  for (const study::WorthRow& row : report.worth.rows) {
    const Json line = {{"event", "worth"},
                       {"workers", row.num_workers},
                       {"batch_size", row.best.batch_size},
                       {"steps", row.best.steps},
                       {"step_seconds", row.best.step_seconds},
                       {"seconds", row.best.seconds},
                       {"seconds_low", optional_number(row.best.seconds_low)},
                       {"seconds_high", optional_number(row.best.seconds_high)},
                       {"speed_up", row.speed_up},
                       {"next_gain", row.next_gain},
                       {"worth_having", row.num_workers <= report.worth.num_worth_having}};
    print_line(line);
  }
  Json line = {{"event", "report"}, {"path", report.path}, {"plots", report.plots}};
  if (!files.steps_curve.empty()) line["steps_curve"] = files.steps_curve;
  if (!files.step_times.empty()) line["step_times"] = files.step_times;
  print_line(line);
}

void print_result(const report::StudyReport& report) {
  for (const std::string& sentence : report.sentences) std::printf("%s\n", printable(sentence).c_str());
  for (const study::Flag& flag : report.flags) std::printf("- %s\n", printable(flag.text()).c_str());
}

void print_text(const report::StudyReport& report) {
  if (!report.others.empty()) std::printf("%s\n", printable(report.name).c_str());
  print_result(report);
  for (const report::StudyReport& other : report.others) {
    std::printf("\n%s\n", printable(other.name).c_str());
    print_result(other);
  }
  if (!report.others.empty()) std::printf("\n");
  for (const study::WorthRow& row : report.worth.rows) {
    std::string next;
    if (&row != &report.worth.rows.back())
      next = row.next_gain > 0 ? concat("; the next number saves ", std::lround(100 * row.next_gain), " %") : "; the next number is slower";
    std::printf("%d worker%s: batch size %s, %s to the goal%s\n", row.num_workers, row.num_workers == 1 ? "" : "s",
                with_commas(row.best.batch_size).c_str(), human_seconds(row.best.seconds).c_str(), next.c_str());
  }
  if (!report.worth.rows.empty())
    std::printf("%d worker%s worth having\n", report.worth.num_worth_having, report.worth.num_worth_having == 1 ? " is" : "s are");
  std::printf("%s\n", printable(report.path).c_str());
}

/// Writes the tables into the study's folder, where a planner looks for them, or beside the page if that folder is an archive or cannot be
/// written.
PlannerFiles write_planner_files(const Found& found, const report::StudyReport& report, const std::vector<study::StepTime>& times,
                                 bool quiet) {
  const std::string beside = parent_folder(report.path);
  const bool in_study = found.first_is_store && is_writable_folder(found.first_folder);
  const std::string folder = in_study ? found.first_folder : beside;
  PlannerFiles files;
  if (report.has_goal) study::write_steps_curve(files.steps_curve = folder + "/steps_curve.csv", report.analysis);
  if (!times.empty()) study::write_step_times(files.step_times = folder + "/step_times.csv", times);
  if (found.first_is_store && !in_study && !files.steps_curve.empty() && !quiet)
    log_info(
        concat(found.first_folder, " is not writable: steps_curve.csv", times.empty() ? "" : " and step_times.csv", " went to ", folder));
  return files;
}

/// The numbers of a list of budgets. `most`: the largest budget of a trial.
std::vector<double> budget_list(const Arguments& arguments, const char* name, double most, const char* unit) {
  std::vector<double> budgets;
  if (!arguments.options.contains(name)) return budgets;
  for (const std::string& part : split(arguments.option(name, ""), ',')) {
    const std::optional<double> value = parse_number(trim(part));
    if (!value || !std::isfinite(*value) || *value <= 0)
      fail(ErrorCode::kBadInput, "--", name, ": '", printable(part), "': expected a number above 0");
    if (*value > most) fail(ErrorCode::kBadInput, "--", name, " ", part, ": no trial had so many ", unit, "; the largest budget is ", most);
    if (std::find(budgets.begin(), budgets.end(), *value) != budgets.end())
      fail(ErrorCode::kBadInput, "--", name, ": ", printable(trim(part)), " is given twice; give each budget once");
    budgets.push_back(*value);
  }
  return budgets;
}

report::StudyBudgets budgets_of(const Arguments& arguments, const study::StudyData& study) {
  double most_steps = 0, most_samples = 0;
  for (const study::BatchStudy& batch : study.batches) {
    double longest = static_cast<double>(batch.train_steps);
    for (const study::Trial& trial : batch.trials) longest = std::max(longest, static_cast<double>(trial.steps));
    most_steps = std::max(most_steps, longest);
    most_samples = std::max(most_samples, longest * static_cast<double>(batch.batch_size));
  }
  report::StudyBudgets budgets;
  for (const double steps : budget_list(arguments, "budget-steps", most_steps, "steps")) {
    if (steps != std::floor(steps)) fail(ErrorCode::kBadInput, "--budget-steps ", steps, ": expected a whole number of steps");
    budgets.steps.push_back(static_cast<int64_t>(steps));
  }
  if (arguments.options.contains("budget-epochs") && study.num_train_samples <= 0)
    fail(ErrorCode::kBadInput, "--budget-epochs: how many samples ", study.dataset, " trains on is not known; use --budget-steps");
  budgets.epochs =
      budget_list(arguments, "budget-epochs", most_samples / std::max(1.0, static_cast<double>(study.num_train_samples)), "epochs");
  return budgets;
}

/// --goals GOAL,GOAL,...
std::vector<study::GoalSpec> further_goals(const Arguments& arguments) {
  std::vector<study::GoalSpec> goals;
  if (!arguments.options.contains("goals")) return goals;
  for (const std::string& part : split(arguments.option("goals", ""), ',')) {
    const study::GoalSpec goal = study::parse_goal_spec(trim(part));
    for (const study::GoalSpec& other : goals)
      if (other.metric == goal.metric && other.value == goal.value)
        fail(ErrorCode::kBadInput, "study report: --goals names ", goal.text(), " twice");
    goals.push_back(goal);
  }
  return goals;
}

/// --goals are drawn in one plot with the goal (--goal, or the first study's own), so they must have its metric.
void check_further_goals(const std::vector<study::GoalSpec>& goals, const std::optional<study::GoalSpec>& asked, const StudyData& study) {
  if (goals.empty()) return;
  if (!asked && study.goals.empty())
    fail(ErrorCode::kBadInput, "study report: --goals are those of figure 2 beside the goal, and the study names none: give --goal too");
  const study::GoalSpec goal = asked ? *asked : study.goals.front();
  for (const study::GoalSpec& one : goals)
    if (one.metric != goal.metric)
      fail(ErrorCode::kBadInput, "study report: --goals ", one.text(), " stands beside ", goal.text(), " in one plot: give goals on ",
           study::name_of(goal.metric));
}

/// --reference-batch must be a batch size of at least one study; plots of shares name the curves that lack it.
void check_reference(double reference, const std::vector<report::ReportedStudy>& studies) {
  std::set<double> sizes;
  for (const report::ReportedStudy& study : studies)
    for (const study::BatchStudy& batch : study.data.batches) sizes.insert(static_cast<double>(batch.batch_size));
  check_reference_batch(reference, sizes);
}

/// Checks the page's path before step times are measured for minutes.
void check_page(const std::string& path) {
  if (fs::is_directory(path)) fail(ErrorCode::kBadInput, "--out ", path, " is a folder; give a file, such as ", path, "/report.html");
  check_writable_folder(parent_folder(path));
  check_replaceable_file(path);
  check_holds_kind(path, "<!doctype html>", 0, "a report");
}

}  // namespace

void print_warnings(const std::vector<std::string>& warnings, bool is_json) {
  for (const std::string& warning : warnings) {
    if (is_json) print_line({{"event", "warning"}, {"text", warning}});
    else std::printf("warning: %s\n", printable(warning).c_str());
  }
}

int study_report(const Arguments& arguments) {
  report::StudyReportOptions options{.reference_batch = reference_batch(arguments)};
  if (arguments.options.contains("goal")) options.goal = study::parse_goal_spec(arguments.option("goal", ""));
  options.goals = further_goals(arguments);
  std::vector<study::GoalSpec> goals = options.goals;
  if (options.goal) goals.push_back(*options.goal);
  Found found = read_folders(arguments, goals);
  check_further_goals(options.goals, options.goal, found.studies.front().data);
  check_reference(options.reference_batch, found.studies);
  options.budgets = budgets_of(arguments, found.studies.front().data);
  options.path = arguments.option("out", found.first_folder + "/report.html");
  check_page(options.path);
  options.times = step_times(found, arguments, options.goal);
  options.noise_scales = std::move(found.noise_scales);
  options.warnings = std::move(found.warnings);
  options.raw_bytes = bytes_of(found);
  options.commands = commands_of(found, arguments);
  options.studies = std::move(found.studies);
  const report::StudyReport report = report::write_study_report(options);
  const PlannerFiles files = write_planner_files(found, report, options.times, arguments.options.contains("quiet"));
  const bool is_json = arguments.options.contains("json");
  print_warnings(report.warnings, is_json);
  if (is_json) print_lines(report, files);
  else print_text(report);
  return 0;
}

}  // namespace cohort
