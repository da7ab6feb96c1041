#include "cohort/cli/train.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/plan/plan.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/tune/auto_layout.h"

namespace cohort {
namespace {

/// The measured machine with that many workers, or the first devices of a larger one.
Cluster machine_of(const ModelProfile& profile, int num_ranks, const std::string& path) {
  const Cluster* found = nullptr;
  int most = 0;
  for (const Cluster& machine : profile.measured_on) {
    most = std::max(most, machine.num_devices());
    if (machine.num_devices() >= num_ranks && (!found || machine.num_devices() < found->num_devices())) found = &machine;
  }
  if (profile.measured_on.empty())
    fail(ErrorCode::kBadInput, "--profile ", path, " does not say what it was measured on, so it forecasts no run; name another file");
  if (!found)
    fail(ErrorCode::kBadInput, "--profile ", path, " was measured with at most ", most, most == 1 ? " worker" : " workers",
         " side by side, and this run has ", num_ranks, "; measure again into another file");
  return found->num_devices() == num_ranks ? *found : first_devices(*found, num_ranks);
}

/// Whether the plan is for this run's model and batch; a message says if not.
bool matches_run(const Json& plan, const Job& job, const std::string& path) {
  if (!plan.is_object() || !plan.contains("predicted_step_seconds")) return false;
  if (const Json model = plan.value("model", Json()); model.is_string() && model != job.config.model) {
    log_info(concat(path, " is a plan for ", model.dump(), ", and this run trains ", job.config.model, ": its forecast is not taken"));
    return false;
  }
  const Json batch = plan.value("global_batch", Json());
  if (batch == job.config.global_batch) return true;
  log_info(concat(path, " forecasts a global batch of ", batch.dump(), ", and this run has ", job.config.global_batch,
                  ": its forecast is not taken"));
  return false;
}

Json read_plan(const std::string& path) { return parse_strict_ordered_json(read_small_file(path, size_t{1} << 24), {.path = path}); }

/// The layout as text without what the configuration holds as well.
std::string bare_text(Layout layout) {
  layout.precision.clear(), layout.accumulate = 0, layout.shares.clear();
  return to_text(layout);
}

/// The plan.json of a run that is resumed with the layout of that plan; null without one.
Json plan_of_run(const Job& job) {
  const std::string path = job.config.run + "/plan.json";
  if (std::error_code ignored; !std::filesystem::exists(path, ignored)) return nullptr;
  try {
    Json plan = read_plan(path);
    if (bare_text(parse_layout(path, 0)) == bare_text(job.layout) && matches_run(plan, job, path)) return plan;
  } catch (const Error& error) {
    log_warning(concat("this run has no forecast: ", error.what()));
  }
  return nullptr;
}

/// Whether the plan was made for this machine: measure_model() names it "this machine, 2 workers".
bool is_measured(const Json& plan) {
  return plan.is_object() && plan.value("cluster", Json()).is_string() && plan["cluster"].get<std::string>().starts_with("this machine");
}

void take_plan(ForecastSource& forecast, const std::string& name, Json plan) {
  forecast.name = name;
  forecast.is_measured_here = is_measured(plan);
  forecast.plan = std::move(plan);
}

}  // namespace

std::optional<ModelProfile> profile_of_run(const Arguments& arguments, const Config& config, int most_workers, const DataSet& data,
                                           const World& world) {
  const std::string path = arguments.option("profile", "");
  if (path.empty()) return std::nullopt;
  const std::string& layout = arguments.config.layout;  // As given: in a job's configuration a layout file is replaced by its text.
  if (const std::string kept = arguments.option("calibration", ""); kept != "none")
    check_distinct_files({{"--profile", path}, {"--calibration", kept}}, {{"--layout", is_layout_file(layout) ? layout : ""}});
  if (config.device != "cpu")
    fail(ErrorCode::kBadInput, "--profile is measured on processors, and --device is ", config.device, "; leave it out");
  if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
    ModelProfile kept = read_model_profile(path);
    check_measured_source(kept, config, path);
    return kept;
  }
  if (world.launcher != "none")
    fail(ErrorCode::kBadInput, "--profile ", path, ": no such file on ", world.host, ", and under ", world.launcher,
         " nothing is measured; make it first: cohort plan --model ", shell_quoted(config.model), " --data ", shell_quoted(config.data),
         " --global-batch ", config.global_batch, " --workers ", most_workers, " --precision ", config.precision, " --profile ",
         shell_quoted(path));
  return measure_and_keep(config, data, {.workers = most_workers, .precisions = {config.precision}, .path = path});
}

void find_forecast(const Arguments& arguments, const Job& job, const World& world, const std::optional<ModelProfile>& profile,
                   TrainOptions& options) {
  ForecastSource& forecast = options.forecast;
  const std::string calibration = arguments.option("calibration", "");
  const std::string file = is_layout_file(arguments.config.layout) ? arguments.config.layout : "";
  if (!forecast.name.empty()) {  // Set by --layout auto.
    forecast.is_measured_here = true;
  } else if (profile) {
    const std::string path = arguments.option("profile", "");
    forecast.name = "--profile " + path;
    forecast.problem = measured_request(job.config, *profile).problem;
    forecast.problem->cluster = machine_of(forecast.problem->profile, job.num_ranks(), path);
    if (world.rank == 0) forecast.problem->intervals = kept_intervals(calibration_file(calibration), *profile);
    forecast.is_measured_here = true;
  } else if (!file.empty()) {
    if (Json plan = read_plan(file); matches_run(plan, job, file)) take_plan(forecast, file, std::move(plan));
  } else if (job.config.resume && world.rank == 0) {
    if (Json plan = plan_of_run(job); !plan.is_null()) take_plan(forecast, "the run's plan.json", std::move(plan));
  }
  forecast.calibration_file = calibration_file(calibration);
  if (!calibration.empty() && calibration != "none" && forecast.name.empty() &&
      (world.launcher == "none" || !job.config.resume))  // Only rank 0 reads the plan of a resumed run.
    fail(ErrorCode::kBadInput, "--calibration ", calibration,
         " would do nothing here: it keeps errors of forecasts, and this run has none; add --profile FILE, use --layout auto, or leave it "
         "out");
}

}  // namespace cohort
