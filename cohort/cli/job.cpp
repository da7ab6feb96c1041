#include <dlfcn.h>

#include <algorithm>

#include "cohort/async/served/served_training.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/cli/options/verb.h"
#include "cohort/comm/rendezvous/refusal.h"
#include "cohort/world/launch.h"

namespace cohort {

Job job_from_arguments(const Arguments& arguments) {
  const World world = world_from_environment();
  const Config& config = arguments.config;
  if (world.launcher == "none") return resolve(config, config.workers);
  // The launcher overrides a number in the file (that of an earlier run, say); one on the command line is a contradiction.
  if (arguments.was_given("workers") && config.workers != world.size)
    fail(ErrorCode::kBadInput, "--workers ", config.workers, " under ", world.launcher, ", which started ", world.size,
         " ranks; leave --workers out");
  if (arguments.was_given("grace"))
    fail(ErrorCode::kBadInput, "--grace is for ranks that cohort train starts, and ", world.launcher,
         " started these; it decides how long they may take to stop: leave --grace out",
         world.launcher == "cohort" ? ", and give it to cohort launch" : "");
  return resolve(config, world.size, world.local_size == world.size);
}

int run_job(const Job& job, const std::function<int(const World&)>& body, std::string* failure) {
  const World world = world_from_environment();
  if (world.launcher != "none") {
    if (world.size > 1) set_log_rank(world.rank);
    const auto reporting_body = [&](const World& here) {
      try {
        return body(here);
      } catch (const Error& error) {
        report_refusal(here, error.code(), error.what());
        throw;
      }
    };
    return guarded(world, reporting_body, failure);
  }
  const std::string& backend = job.config.backend;
  if (backend == "mpi" || backend == "shm+mpi")
    fail(ErrorCode::kBadInput, "--backend ", backend, " exchanges over the MPI that started the ranks; start them with mpirun -n ",
         std::max(2, job.num_ranks()), " cohort ...");
  if (job.num_ranks() == 1) return guarded(world, body, failure);
  return run_ranks({.num_ranks = job.num_ranks(),
                    .stop_seconds = job.config.grace,
                    .failure = failure,
                    .workers_may_be_lost = is_served(job.config, job.layout)},
                   body);
}

void load_plugin(const Config& config) {
  if (config.plugin.empty()) return;
  // dlopen() looks for a bare name in the system's folders only; users mean the file.
  const std::string path = config.plugin.find('/') == std::string::npos ? "./" + config.plugin : config.plugin;
  // Kept open: registered factories live in it.
  if (!::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) fail(ErrorCode::kBadInput, "--plugin ", config.plugin, ": ", ::dlerror());
}

}  // namespace cohort
