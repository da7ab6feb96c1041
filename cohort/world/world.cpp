#include "cohort/world/world.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/setting_name.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/log.h"
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

/// Kubernetes sets MASTER_PORT=tcp://... in all pods of a name space that has a service named master.
void read_master(World& world) {
  world.master_address = variable("MASTER_ADDR");
  const std::string& address = world.master_address;
  if (address.starts_with('[') && address.ends_with(']')) world.master_address = address.substr(1, address.size() - 2);
  if (const std::string port = variable("MASTER_PORT"); port.find("://") != std::string::npos) {
    if (world.master_address.empty() && world.launcher != "torchrun") return;  // Nobody meant it for us.
    fail(ErrorCode::kEnvironment, "MASTER_PORT='", port,
         "' is no port: Kubernetes sets it so where a service is named master; set MASTER_PORT to the port of rank 0, name the service "
         "otherwise, or give the pods enableServiceLinks: false");
  }
  world.master_port = number({"MASTER_PORT"}, 0, "the environment");
  if (world.master_port > 65535) fail(ErrorCode::kEnvironment, "MASTER_PORT=", world.master_port, " is not a port (1 to 65535)");
}

void read_torchrun(World& world) {
  world.launcher = "torchrun";
  world.rank = number({"RANK"}, {}, "torchrun (or you)");
  world.size = number({"WORLD_SIZE"}, {}, "torchrun (or you)");
  world.local_rank = number({"LOCAL_RANK"}, 0, "torchrun");
  world.local_size = number({"LOCAL_WORLD_SIZE"}, 1, "torchrun");
  world.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  world.job_id = variable("TORCHELASTIC_RUN_ID") + "." + variable("TORCHELASTIC_RESTART_COUNT");
  if (world.size == 1) return;
  read_master(world);
  if (world.master_address.empty() || world.master_port == 0)
    fail(ErrorCode::kEnvironment, "RANK and WORLD_SIZE=", world.size, " are set, MASTER_ADDR and MASTER_PORT are not; all four make a job");
}

/// A step of srun's, and not the script of the job nor an interactive shell in it, whose numbers are reserved ones.
bool is_task_of_srun() {
  constexpr int64_t kFirstReserved = 0xfffffff0;
  std::string step = variable("SLURM_STEP_ID");
  if (step.empty()) step = variable("SLURM_STEPID");
  const auto number_of_step = parse_integer(step);
  return !variable("SLURM_PROCID").empty() && number_of_step && *number_of_step >= 0 && *number_of_step < kFirstReserved &&
         number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1, "srun") > 1;
}

void read_slurm(World& world) {
  world.launcher = "slurm";
  world.rank = number({"SLURM_PROCID"}, {}, "srun");
  world.size = number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {}, "srun");
  world.local_rank = number({"SLURM_LOCALID"}, 0, "srun");
  // "2(x3),1" counts tasks per node in order; the first number is right where nodes are alike, which is all it is used for.
  const std::string tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  const auto local = parse_integer(tasks.substr(0, tasks.find_first_of("(,")));
  world.local_size = local ? static_cast<int>(*local) : world.size;
  if (world.local_rank >= world.local_size) world.local_size = world.local_rank + 1;
  world.job_id = variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
  read_master(world);
}

void tell_slurm_script() {
  static std::once_flag once;
  const int tasks = number({"SLURM_NTASKS"}, 1, "Slurm");
  if (tasks == 1) return;
  std::call_once(once, [&] {
    log_warning(
        concat("this is the script of a Slurm job with ", tasks,
               name_settings(
                   " tasks and none of its tasks, so it is one process: start the tasks with srun, or ranks of its own with --workers")));
  });
}

/// srun --mpi=pmi2 sets them beside its own, which say more; MPICH's own launcher, which srun may have started, says who shares a host.
bool is_pmi_of_srun() {
  if (!variable("MPI_LOCALRANKID").empty() || !is_task_of_srun()) return false;
  const int rank = number({"PMI_RANK"}, {}, "srun"), size = number({"PMI_SIZE"}, {}, "srun");
  World slurm;
  read_slurm(slurm);
  if (rank != slurm.rank || size != slurm.size)
    fail(ErrorCode::kEnvironment, "PMI_RANK and PMI_SIZE say rank ", rank, " of ", size, ", Slurm's variables rank ", slurm.rank, " of ",
         slurm.size, "; unset those of the launcher that did not start this program (PMI_RANK and PMI_SIZE, or SLURM_PROCID)");
  return true;
}

bool is_memory_file(int descriptor, const std::string& name) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(concat("/proc/self/fd/", descriptor).c_str(), target.data(), target.size() - 1);
  return length > 0 && std::string_view(target.data()).starts_with("/memfd:" + name);
}

bool is_our_ancestor(int process) {
  for (int at = ::getppid(); at > 0 && process > 0;) {
    if (at == process) return true;
    const std::vector<std::string> fields = process_stat(at);
    if (fields.empty()) return false;
    at = static_cast<int>(parse_integer(fields[stat_field::kParent]).value_or(0));
  }
  return false;
}

/// The file over which ranks of `cohort launch` meet; -1 for none. A rank may have started this program without it, as Python's subprocess
/// does: they meet at the launcher's MASTER_PORT then. Of a launcher that is none of ours any more nothing counts.
int inherited_store_fd() {
  if (variable("COHORT_STORE_FD").empty()) return -1;
  const int descriptor = number({"COHORT_STORE_FD"}, {}, "cohort launch");
  if (is_memory_file(descriptor, "cohort-store")) return descriptor;
  if (is_our_ancestor(number({"COHORT_LAUNCHER"}, 0, "cohort launch"))) return -1;
  fail(
      ErrorCode::kEnvironment, "COHORT_STORE_FD=", descriptor,
      " is left of a `cohort launch` that this process is no rank of; start it without that: env -u COHORT_STORE_FD -u RANK -u WORLD_SIZE ",
      "COMMAND");
}

void check(const World& world) {
  if (world.size < 1)
    fail(ErrorCode::kEnvironment, world.launcher, "'s variables say that there are ", world.size, " ranks; at least one is needed");
  if (world.rank >= world.size)
    fail(ErrorCode::kEnvironment, world.launcher, "'s variables say rank ", world.rank, " of ", world.size, " ranks, which are 0 to ",
         world.size - 1);
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

  if (const int store_fd = inherited_store_fd(); store_fd >= 0) {
    world.launcher = "cohort";
    world.rank = number({"RANK"}, {}, "cohort launch");
    world.size = number({"WORLD_SIZE"}, {}, "cohort launch");
    world.local_rank = world.rank;
    world.local_size = world.size;
    world.store_fd = store_fd;
    world.status_fd = number({"COHORT_STATUS_FD"}, -1, "cohort launch");
    if (!is_memory_file(world.status_fd, "cohort-status")) world.status_fd = -1;
  } else if (!variable("RANK").empty() || !variable("WORLD_SIZE").empty()) {
    read_torchrun(world);
  } else if (!variable("OMPI_COMM_WORLD_RANK").empty() || !variable("OMPI_COMM_WORLD_SIZE").empty()) {
    world.launcher = "openmpi";
    world.rank = number({"OMPI_COMM_WORLD_RANK"}, {}, "mpirun (Open MPI)");
    world.size = number({"OMPI_COMM_WORLD_SIZE"}, {}, "mpirun (Open MPI)");
    world.local_rank = number({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0, "mpirun (Open MPI)");
    world.local_size = number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1, "mpirun (Open MPI)");
    world.job_id = variable("PMIX_NAMESPACE");
    if (world.job_id.empty()) world.job_id = variable("OMPI_MCA_ess_base_jobid");
    read_master(world);
  } else if ((!variable("PMI_RANK").empty() || !variable("PMI_SIZE").empty()) && !is_pmi_of_srun()) {
    world.launcher = "mpich";
    world.rank = number({"PMI_RANK"}, {}, "mpirun (MPICH)");
    world.size = number({"PMI_SIZE"}, {}, "mpirun (MPICH)");
    world.local_rank = number({"MPI_LOCALRANKID"}, world.rank, "mpirun (MPICH)");
    world.local_size = number({"MPI_LOCALNRANKS"}, world.size, "mpirun (MPICH)");
    // Hydra names no job, but its ranks on a host are children of one proxy whose control pipe has one number and one parent.
    world.job_id = variable("PMI_JOBID").empty() ? concat("mpich-", ::getppid()) : variable("PMI_JOBID");
    read_master(world);
  } else if (is_task_of_srun()) {
    read_slurm(world);
  } else if (!variable("SLURM_PROCID").empty()) {
    tell_slurm_script();
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
