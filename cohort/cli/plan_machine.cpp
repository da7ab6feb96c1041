#include "cohort/cli/plan_machine.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source.h"
#include "cohort/plan/explain/explain.h"
#include "cohort/train/measured/auto_layout.h"
#include "cohort/train/measured/measure_model.h"

namespace cohort {
namespace {

/// For --ladder: with all workers alone, at micro-batches that are sure to be small, for what did not fit once must not be tried again.
/// Larger ones lie on the line through these.
ModelProfile measure_small(Config config, const DataSet& data, const std::vector<std::string>& precisions, bool shows_progress) {
  constexpr int64_t kSamples = 16;
  const int64_t batch = config.global_batch, workers = config.workers;
  for (const int64_t samples : {kSamples * workers, workers}) {
    config.global_batch = std::min(batch, samples);
    try {
      return measure_model(config, data, {.precisions = precisions, .workers = {config.workers}, .shows_progress = shows_progress});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEnvironment || config.global_batch <= workers) throw;  // Killed, that is.
    }
  }
  fail(ErrorCode::kEnvironment, "not even one sample a rank could be measured");
}

}  // namespace

ModelProfile profile_of_this_machine(const Arguments& arguments) {
  Config config = arguments.config;
  const std::string path = arguments.option("profile", "");
  if (config.workers == 0) config.workers = std::min<int>(8, std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))));
  const std::vector<std::string> precisions =
      arguments.was_given("precision") ? std::vector<std::string>{config.precision} : std::vector<std::string>{"fp32", "bf16"};
  const std::string source =
      concat("measured on this machine: --model ", config.model, " --data ", config.data, " --global-batch ", config.global_batch,
             " --context ", config.context, config.image_size > 0 ? concat(" --image-size ", config.image_size) : "", " --workers ",
             config.workers, config.threads > 0 ? concat(" --threads ", config.threads) : "", " in ", join(precisions, " and "));
  if (std::error_code ignored; !path.empty() && std::filesystem::exists(path, ignored)) {
    ModelProfile kept = read_model_profile(path);
    if (kept.source != source)
      fail(ErrorCode::kBadInput, "--profile ", path, " is there and says '", kept.source, "', and this is ", source,
           "; name another file, or leave --model out to plan with it");
    return kept;
  }
  if (!path.empty()) check_writable_file(path);
  load_plugin(config);
  const DataSet data = open_data(config);
  const bool shows_progress = !config.json && !config.quiet && ::isatty(STDERR_FILENO) == 1;
  if (path.empty() && arguments.options.contains("ladder")) return measure_small(config, data, precisions, shows_progress);
  ModelProfile profile = measure_model(
      config, data, {.precisions = precisions, .workers = numbers_of_workers(config.workers), .shows_progress = shows_progress});
  profile.source = source;
  if (!path.empty()) write_file_atomically(path, to_json(profile).dump(1) + "\n");
  return profile;
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
                           tried.plan ? objective_text(tried.request.objective, tried.plan->objective) : std::string("nothing fits")));
  }
  if (parts.size() < 2) return {};
  return {"measured on this machine with each number of workers side by side; the best plan of each: " + join(parts, ", ")};
}

}  // namespace cohort
