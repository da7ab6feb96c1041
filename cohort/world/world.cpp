#include "cohort/world/world.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "cohort/base/cores.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The first of `names` that is set, as a number; `fallback` when none is.
int number(std::initializer_list<const char*> names, std::optional<int> fallback, const std::string& launcher) {
  for (const char* name : names) {
    const std::string text = variable(name);
    if (text.empty()) continue;
    const auto value = parse_integer(text);
    if (!value || *value < 0 || *value > 1 << 24)
      fail(ErrorCode::kEnvironment, launcher, " set ", name, "='", text, "', which is not a rank or a count");
    return static_cast<int>(*value);
  }
  if (fallback) return *fallback;
  fail(ErrorCode::kEnvironment, launcher, " did not set ", *names.begin(),
       "; start the program with that launcher, or unset its other variables");
}

void read_master(World& world) {
  world.master_address = variable("MASTER_ADDR");
  world.master_port = number({"MASTER_PORT"}, 0, "the environment");
  if (world.master_port > 65535) fail(ErrorCode::kEnvironment, "MASTER_PORT=", world.master_port, " is not a port (1 to 65535)");
}

void check(const World& world) {
  if (world.size < 1 || world.rank >= world.size)
    fail(ErrorCode::kEnvironment, world.launcher, " says rank ", world.rank, " of ", world.size, " ranks");
  if (world.local_size < 1 || world.local_rank >= world.local_size || world.local_size > world.size)
    fail(ErrorCode::kEnvironment, world.launcher, " says local rank ", world.local_rank, " of ", world.local_size, " in a world of ",
         world.size);
}

}  // namespace

World world_from_environment() {
  World world;
  end_uncaught_errors_well(world);  // What is wrong with the environment is an Error too.
  utsname names{};
  ::uname(&names);
  world.host = names.nodename;

  if (!variable("COHORT_STORE_FD").empty()) {
    world.launcher = "cohort";
    world.rank = number({"RANK"}, {}, "cohort launch");
    world.size = number({"WORLD_SIZE"}, {}, "cohort launch");
    world.local_rank = world.rank;
    world.local_size = world.size;
    world.store_fd = number({"COHORT_STORE_FD"}, {}, "cohort launch");
    world.status_fd = number({"COHORT_STATUS_FD"}, -1, "cohort launch");
  } else if (!variable("RANK").empty() || !variable("WORLD_SIZE").empty()) {
    world.launcher = "torchrun";
    world.rank = number({"RANK"}, {}, "torchrun (or you)");
    world.size = number({"WORLD_SIZE"}, {}, "torchrun (or you)");
    world.local_rank = number({"LOCAL_RANK"}, 0, "torchrun");
    world.local_size = number({"LOCAL_WORLD_SIZE"}, 1, "torchrun");
    world.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    world.job_id = variable("TORCHELASTIC_RUN_ID") + "." + variable("TORCHELASTIC_RESTART_COUNT");
    read_master(world);
    if (world.size > 1 && (world.master_address.empty() || world.master_port == 0))
      fail(ErrorCode::kEnvironment, "RANK and WORLD_SIZE=", world.size,
           " are set, MASTER_ADDR and MASTER_PORT are not; all four make a job");
  } else if (!variable("OMPI_COMM_WORLD_RANK").empty() || !variable("OMPI_COMM_WORLD_SIZE").empty()) {
    world.launcher = "openmpi";
    world.rank = number({"OMPI_COMM_WORLD_RANK"}, {}, "mpirun (Open MPI)");
    world.size = number({"OMPI_COMM_WORLD_SIZE"}, {}, "mpirun (Open MPI)");
    world.local_rank = number({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0, "mpirun (Open MPI)");
    world.local_size = number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1, "mpirun (Open MPI)");
    world.job_id = variable("PMIX_NAMESPACE");
    if (world.job_id.empty()) world.job_id = variable("OMPI_MCA_ess_base_jobid");
    read_master(world);
  } else if (!variable("PMI_RANK").empty() || !variable("PMI_SIZE").empty()) {
    world.launcher = "mpich";
    world.rank = number({"PMI_RANK"}, {}, "mpirun (MPICH)");
    world.size = number({"PMI_SIZE"}, {}, "mpirun (MPICH)");
    world.local_rank = number({"MPI_LOCALRANKID"}, world.rank, "mpirun (MPICH)");
    world.local_size = number({"MPI_LOCALNRANKS"}, world.size, "mpirun (MPICH)");
    // Hydra names no job, but its ranks on a host are children of one proxy whose control pipe has one number and one parent.
    world.job_id = variable("PMI_JOBID").empty() ? concat("mpich-", ::getppid()) : variable("PMI_JOBID");
    read_master(world);
  } else if (!variable("SLURM_PROCID").empty() && number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1, "srun") > 1) {
    world.launcher = "slurm";
    world.rank = number({"SLURM_PROCID"}, {}, "srun");
    world.size = number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {}, "srun");
    world.local_rank = number({"SLURM_LOCALID"}, 0, "srun");
    // "2(x3),1" counts tasks per node in order; the first number is right where nodes are alike, which is all it is used for.
    const auto local =
        parse_integer(variable("SLURM_STEP_TASKS_PER_NODE").substr(0, variable("SLURM_STEP_TASKS_PER_NODE").find_first_of("(,")));
    world.local_size = local ? static_cast<int>(*local) : world.size;
    if (world.local_rank >= world.local_size) world.local_size = world.local_rank + 1;
    world.job_id = variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
    read_master(world);
  }
  check(world);
  end_uncaught_errors_well(world);
  return world;
}

int cores_of_rank(const World& world) {
  const int usable = num_affinity_cores(), all = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  // mpirun and srun may have given each rank cores of its own; the other launchers' ranks share those that there are.
  const bool are_own = world.launcher == "openmpi" || world.launcher == "mpich" || world.launcher == "slurm";
  const int cores = are_own ? std::min(usable, all / world.local_size) : usable / world.local_size;
  return std::max(1, std::min(cores, num_quota_cores() / world.local_size));  // The time of a container is shared by all of them.
}

std::string describe(const World& world) {
  if (world.launcher == "none") return "no launcher: one rank";
  return concat(world.launcher, ": rank ", world.rank, " of ", world.size, ", ", world.local_size, " on this host");
}

}  // namespace cohort
