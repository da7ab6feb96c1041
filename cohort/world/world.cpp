#include "cohort/world/world.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include "cohort/world/job_token.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

/// The first of `names` that is set, as a number; `fallback` if none is.
int number(std::initializer_list<const char*> names, std::optional<int> fallback, const std::string& launcher) {
  for (const char* name : names) {
    const std::string text = environment_variable(name);
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

/// Handles Kubernetes, which sets MASTER_PORT=tcp://... in all pods of a namespace with a service named master.
void read_master(World& world) {
  world.master_address = environment_variable("MASTER_ADDR");
  const std::string& address = world.master_address;
  if (address.starts_with('[') && address.ends_with(']')) world.master_address = address.substr(1, address.size() - 2);
  if (const std::string port = environment_variable("MASTER_PORT"); port.find("://") != std::string::npos) {
    if (world.master_address.empty() && world.launcher != "torchrun") return;  // Not set for this job.
    fail(ErrorCode::kEnvironment, "MASTER_PORT='", port,
         "' is not a port: Kubernetes sets it so where a service is named master; set MASTER_PORT to the port of rank 0, name the service "
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
  world.agent_store = environment_variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  world.job_id = environment_variable("TORCHELASTIC_RUN_ID") + "." + environment_variable("TORCHELASTIC_RESTART_COUNT");
  if (world.size == 1) return;
  read_master(world);
  if (world.master_address.empty() || world.master_port == 0)
    fail(ErrorCode::kEnvironment, "RANK and WORLD_SIZE=", world.size, " are set, MASTER_ADDR and MASTER_PORT are not; all four make a job");
}

/// True in a step of srun; false in the job script or an interactive shell, whose step ids are reserved numbers.
bool is_srun_task() {
  constexpr int64_t kFirstReserved = 0xfffffff0;
  std::string step = environment_variable("SLURM_STEP_ID");
  if (step.empty()) step = environment_variable("SLURM_STEPID");
  const auto step_id = parse_integer(step);
  return !environment_variable("SLURM_PROCID").empty() && step_id && *step_id >= 0 && *step_id < kFirstReserved &&
         number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1, "srun") > 1;
}

void read_slurm(World& world) {
  world.launcher = "slurm";
  world.rank = number({"SLURM_PROCID"}, {}, "srun");
  world.size = number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {}, "srun");
  world.local_rank = number({"SLURM_LOCALID"}, 0, "srun");
  // "2(x3),1" lists tasks per node. The first number is right if all nodes are alike, which suffices here.
  const std::string tasks = environment_variable("SLURM_STEP_TASKS_PER_NODE");
  const auto local = parse_integer(tasks.substr(0, tasks.find_first_of("(,")));
  world.local_size = local ? static_cast<int>(*local) : world.size;
  if (world.local_rank >= world.local_size) world.local_size = world.local_rank + 1;
  world.job_id = environment_variable("SLURM_JOB_ID") + "." + environment_variable("SLURM_STEP_ID");
  read_master(world);
}

void warn_slurm_script() {
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

/// True for PMI variables that srun --mpi=pmi2 sets beside its own, which say more; false for those of MPICH's launcher, even under srun.
bool is_srun_pmi() {
  if (!environment_variable("MPI_LOCALRANKID").empty() || !is_srun_task()) return false;
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

bool is_ancestor(int process) {
  for (int at = ::getppid(); at > 0 && process > 0;) {
    if (at == process) return true;
    const std::vector<std::string> fields = process_stat(at);
    if (fields.empty()) return false;
    at = static_cast<int>(parse_integer(fields[stat_field::kParent]).value_or(0));
  }
  return false;
}

/// The rendezvous file of `cohort launch`; -1 for none. A rank that started this program may have closed it, as Python's subprocess does;
/// the launcher's MASTER_PORT is used then. Variables left over from a launcher that is not an ancestor are an error.
int inherited_store_fd() {
  if (environment_variable("COHORT_STORE_FD").empty()) return -1;
  const int descriptor = number({"COHORT_STORE_FD"}, {}, "cohort launch");
  if (is_memory_file(descriptor, "cohort-store")) return descriptor;
  if (is_ancestor(number({"COHORT_LAUNCHER"}, 0, "cohort launch"))) return -1;
  fail(ErrorCode::kEnvironment, "COHORT_STORE_FD=", descriptor,
       " is left of a `cohort launch` that did not start this process; unset it: env -u COHORT_STORE_FD -u RANK -u WORLD_SIZE ", "COMMAND");
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
  handle_uncaught_exceptions(world);  // Errors in the environment are reported as well.
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
  } else if (!environment_variable("RANK").empty() || !environment_variable("WORLD_SIZE").empty()) {
    read_torchrun(world);
  } else if (!environment_variable("OMPI_COMM_WORLD_RANK").empty() || !environment_variable("OMPI_COMM_WORLD_SIZE").empty()) {
    world.launcher = "openmpi";
    world.rank = number({"OMPI_COMM_WORLD_RANK"}, {}, "mpirun (Open MPI)");
    world.size = number({"OMPI_COMM_WORLD_SIZE"}, {}, "mpirun (Open MPI)");
    world.local_rank = number({"OMPI_COMM_WORLD_LOCAL_RANK"}, 0, "mpirun (Open MPI)");
    world.local_size = number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, 1, "mpirun (Open MPI)");
    world.job_id = environment_variable("PMIX_NAMESPACE");
    if (world.job_id.empty()) world.job_id = environment_variable("OMPI_MCA_ess_base_jobid");
    read_master(world);
  } else if ((!environment_variable("PMI_RANK").empty() || !environment_variable("PMI_SIZE").empty()) && !is_srun_pmi()) {
    world.launcher = "mpich";
    world.rank = number({"PMI_RANK"}, {}, "mpirun (MPICH)");
    world.size = number({"PMI_SIZE"}, {}, "mpirun (MPICH)");
    world.local_rank = number({"MPI_LOCALRANKID"}, world.rank, "mpirun (MPICH)");
    world.local_size = number({"MPI_LOCALNRANKS"}, world.size, "mpirun (MPICH)");
    // Hydra sets no job id, but its ranks on a host are children of one proxy.
    world.job_id = environment_variable("PMI_JOBID").empty() ? concat("mpich-", ::getppid()) : environment_variable("PMI_JOBID");
    read_master(world);
  } else if (is_srun_task()) {
    read_slurm(world);
  } else if (!environment_variable("SLURM_PROCID").empty()) {
    warn_slurm_script();
  }
  check(world);
  handle_uncaught_exceptions(world);
  return world;
}

int cores_of_rank(const World& world) {
  const int usable = num_affinity_cores(), all = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  // mpirun and srun may bind each rank to cores of its own; with other launchers the ranks share all cores.
  const bool is_bound = world.launcher == "openmpi" || world.launcher == "mpich" || world.launcher == "slurm";
  const int cores = is_bound ? std::min(usable, all / world.local_size) : usable / world.local_size;
  return std::max(1, std::min(cores, num_quota_cores() / world.local_size));  // All ranks share the CPU quota of a container.
}

std::string describe(const World& world) {
  if (world.launcher == "none") return "no launcher: one rank";
  return concat(world.launcher, ": rank ", world.rank, " of ", world.size, ", ", world.local_size, " on this host");
}

}  // namespace cohort
