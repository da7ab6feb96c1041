#include <dlfcn.h>

#include <algorithm>

#include "cohort/base/error.h"
#include "cohort/base/layout.h"
#include "cohort/base/log.h"
#include "cohort/cli/verb.h"
#include "cohort/train/run/check_run.h"
#include "cohort/world/launch.h"

namespace cohort {

int run_job(const Arguments& arguments, const std::function<int(const World&)>& body, std::string* failure) {
  const World world = world_from_environment();
  const Config& config = arguments.config;
  if (world.launcher != "none") {
    // A number in the file (that of an earlier run, say) gives way to the launcher; one on the command line is a contradiction.
    if (arguments.was_given("workers") && config.workers != world.size)
      fail(ErrorCode::kBadInput, "--workers ", config.workers, " under ", world.launcher, ", which started ", world.size,
           " ranks; leave --workers out");
    check_run({.config = config,
               .layout = parse_layout(config.layout, world.size),
               .num_ranks = world.size,
               .one_host = world.local_size == world.size,
               .is_text = is_text_data(config.data)});
    if (world.size > 1) set_log_rank(world.rank);
    return guarded(world, body, failure);
  }
  const Layout layout = parse_layout(config.layout, config.workers);
  const int num_ranks = layout.num_ranks();
  check_run(config, layout, num_ranks);
  if (config.backend == "mpi" || config.backend == "shm+mpi")
    fail(ErrorCode::kBadInput, "--backend ", config.backend, " exchanges over the MPI that started the ranks; start them with mpirun -n ",
         std::max(2, num_ranks), " cohort ...");
  if (num_ranks == 1) return guarded(world, body, failure);
  return run_ranks({.num_ranks = num_ranks, .failure = failure}, body);
}

void load_plugin(const Config& config) {
  if (config.plugin.empty()) return;
  // A bare name would be looked for in the system's folders only; users mean the file they name.
  const std::string path = config.plugin.find('/') == std::string::npos ? "./" + config.plugin : config.plugin;
  // Kept open: registered factories live in it.
  if (!::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) fail(ErrorCode::kBadInput, "--plugin ", config.plugin, ": ", ::dlerror());
}

}  // namespace cohort
