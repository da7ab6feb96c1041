#include "cohort/cli/plan/plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/source.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/tune/auto_layout.h"
#include "cohort/tune/measure_model.h"

namespace cohort {
namespace {

/// For --ladder: measures with all workers only, and at small micro-batches, since the run's own did not fit. Larger ones are extrapolated
/// linearly.
ModelProfile measure_small(Config config, const DataSet& data, const KeptMeasurement& what) {
  constexpr int64_t kSamples = 16;
  const int64_t batch = config.global_batch, workers = what.workers;
  for (const int64_t samples : {kSamples * workers, workers}) {
    config.global_batch = std::min(batch, samples);
    try {
      return measure_model(config, data,
                           {.precisions = what.precisions, .workers = {what.workers}, .shows_progress = shows_progress(config)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEnvironment || config.global_batch <= workers) throw;  // Not killed for lack of memory.
    }
  }
  fail(ErrorCode::kEnvironment, "not even one sample a rank could be measured");
}

/// The settings that determine the shapes of the layers: the first part of a profile's source.
std::string model_source(const Config& config) {
  return concat("measured on this machine: --model ", config.model, " --data ", config.data, " --context ", config.context,
                config.image_size > 0 ? concat(" --image-size ", config.image_size) : "", " ");
}

std::string source_of(const Config& config, const KeptMeasurement& what) {
  return concat(model_source(config), "--global-batch ", config.global_batch, " --workers ", what.workers,
                config.threads > 0 ? concat(" --threads ", config.threads) : "",
                config.inject.empty() ? "" : concat(" --inject ", config.inject), " in ", join(what.precisions, " and "));
}

/// Only slow workers can be injected into a plan's measurement; other faults happen during training.
void check_inject(const Config& config, int workers) {
  for (const InjectedFault& fault : parse_faults(config.inject)) {
    if (fault.kind != "slow")
      fail(ErrorCode::kBadInput, "--inject ", fault.kind, ":", fault.rank, ":", fault.value, ": plan measures how fast workers are, where ",
           fault.kind, " would do nothing; give slow:RANK:FACTOR, or leave it out");
    if (fault.rank >= workers)
      fail(ErrorCode::kBadInput, "--inject ", config.inject, ": there is no rank ", fault.rank, ", the last of ", workers, " is rank ",
           workers - 1);
  }
}

}  // namespace

ModelProfile measure_and_keep(const Config& config, const DataSet& data, const KeptMeasurement& what) {
  if (!what.path.empty()) check_writable_file(what.path);
  ModelProfile profile = measure_model(config, data,
                                       {.precisions = what.precisions,
                                        .workers = numbers_of_workers(what.workers),
                                        .times_compression = true,
                                        .shows_progress = shows_progress(config)});
  profile.source = source_of(config, what);
  if (!what.path.empty()) write_file_atomically(what.path, to_json(profile).dump(1) + "\n");
  return profile;
}

void check_measured_source(const ModelProfile& profile, const Config& config, const std::string& path) {
  if (!profile.source.starts_with("measured on this machine: --model ")) return;
  const std::string slow = selected_faults(config.inject, config.workers > 0 ? config.workers : 1, /*slow_only=*/true),
                    option = " --inject ";
  const size_t at = profile.source.find(option);
  const std::string made_slow =
      at == std::string::npos ? "" : profile.source.substr(at + option.size(), profile.source.find(" in ", at) - at - option.size());
  if (!made_slow.empty() && made_slow != slow)  // A run that is slowed on purpose may be compared with a profile that is not.
    fail(ErrorCode::kBadInput, "--profile ", path, " was measured with --inject '", made_slow, "', and this run has '", slow,
         "', so its workers have other speeds; name another file");
  if (profile.source.starts_with(model_source(config))) return;
  fail(ErrorCode::kBadInput, "--profile ", path, " is there and says '", profile.source, "', and this is ", trim(model_source(config)),
       "; name another file");
}

ModelProfile profile_of_this_machine(const Arguments& arguments) {
  const Config& config = arguments.config;
  KeptMeasurement what{.workers = config.workers, .precisions = {"fp32", "bf16"}, .path = arguments.option("profile", "")};
  if (what.workers == 0) what.workers = std::min<int>(8, std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))));
  check_inject(config, what.workers);
  if (arguments.was_given("precision")) what.precisions = {config.precision};
  if (std::error_code ignored; !what.path.empty() && std::filesystem::exists(what.path, ignored)) {
    ModelProfile kept = read_model_profile(what.path);
    if (const std::string source = source_of(config, what); kept.source != source)
      fail(ErrorCode::kBadInput, "--profile ", what.path, " is there and says '", kept.source, "', and this is ", source,
           "; name another file, or leave --model out to plan with it");
    return kept;
  }
  if (!what.path.empty()) check_writable_file(what.path);  // Reported before the data are read.
  load_plugin(config);
  const DataSet data = open_data(config);
  if (what.path.empty() && arguments.options.contains("ladder")) return measure_small(config, data, what);
  return measure_and_keep(config, data, what);
}

ForecastIntervals kept_intervals_for(const Arguments& arguments, const ModelProfile& profile) {
  const std::string given = arguments.option("calibration", "");
  if (!arguments.options.contains("cluster")) {
    check_calibration_option(given);
    if (std::error_code ignored; !given.empty() && given != "none" && !std::filesystem::exists(given, ignored))
      log_info(concat("--calibration ", given, " is not there, so no forecast before is known and the default interval stands"));
    return kept_intervals(calibration_file(given), profile);
  }
  if (!given.empty())
    fail(ErrorCode::kBadInput, "--calibration is of forecasts for this machine, and --cluster names another; leave one of them out");
  return {};
}

const Cluster& largest_machine(const ModelProfile& profile, int most_workers) {
  const Cluster* largest = &profile.measured_on.front();
  for (const Cluster& machine : profile.measured_on)
    if (machine.num_devices() > largest->num_devices() && (most_workers == 0 || machine.num_devices() <= most_workers)) largest = &machine;
  return *largest;
}

std::vector<std::string> machine_sentences(const MachineAnswer& found) {
  std::vector<std::string> parts;
  for (const MachineAnswer::Tried& tried : found.tried) {
    const int workers = tried.request.problem.cluster.num_devices();
    parts.push_back(concat(workers, workers == 1 ? " worker " : " workers ",
                           tried.plan ? objective_text(tried.request.objective, tried.plan->objective) : tried.why));
  }
  if (parts.size() < 2) return {};
  return {"measured on this machine with each number of workers side by side; the best plan of each: " + join(parts, ", ")};
}

}  // namespace cohort
