#include "cohort/cli/plan_machine.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source.h"
#include "cohort/job/injected_faults.h"
#include "cohort/plan/explain/explain.h"
#include "cohort/train/measured/auto_layout.h"
#include "cohort/train/measured/measure_model.h"

namespace cohort {
namespace {

/// Workers may be slowed down, to see what a plan makes of it; other faults come while a run trains.
void check_inject(const Config& config) {
  for (const InjectedFault& fault : parse_faults(config.inject)) {
    if (fault.kind != "slow")
      fail(ErrorCode::kBadInput, "--inject ", fault.kind, ":", fault.rank, ":", fault.value, ": plan measures how fast workers are, where ",
           fault.kind, " would do nothing; give slow:RANK:FACTOR, or leave it out");
    if (fault.rank >= config.workers)
      fail(ErrorCode::kBadInput, "--inject ", config.inject, ": there is no rank ", fault.rank, ", the last of ", config.workers,
           " is rank ", config.workers - 1);
  }
}

}  // namespace

ModelProfile profile_of_this_machine(const Arguments& arguments) {
  Config config = arguments.config;
  const std::string path = arguments.option("profile", "");
  if (config.workers == 0) config.workers = std::min<int>(8, std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))));
  check_inject(config);
  const std::vector<std::string> precisions =
      arguments.was_given("precision") ? std::vector<std::string>{config.precision} : std::vector<std::string>{"fp32", "bf16"};
  const std::string source =
      concat("measured on this machine: --model ", config.model, " --data ", config.data, " --global-batch ", config.global_batch,
             " --context ", config.context, config.image_size > 0 ? concat(" --image-size ", config.image_size) : "", " --workers ",
             config.workers, " in ", join(precisions, " and "), config.inject.empty() ? "" : concat(" --inject ", config.inject));
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
  ModelProfile profile = measure_model(config, data,
                                       {.precisions = precisions,
                                        .workers = numbers_of_workers(config.workers),
                                        .shows_progress = !config.json && !config.quiet && ::isatty(STDERR_FILENO) == 1});
  profile.source = source;
  if (!path.empty()) write_file_atomically(path, to_json(profile).dump(1) + "\n");
  return profile;
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
