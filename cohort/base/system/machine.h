#pragma once
// This machine and this process: cores, memory, time on the CPU, instructions and forks.

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/base/files/file.h"

namespace cohort {

/// Environment variable of a program that has executed itself again so that OpenMP threads wait passively (cli/start/wait_asleep.h).
inline constexpr const char* kThreadsSleepVariable = "COHORT_THREADS_SLEEP";

/// Cores that this process may use, at least 1: those of its affinity, limited by the quota of its cgroup.
int num_usable_cores();

/// Cores of its affinity (taskset, a batch system), at least 1.
int num_affinity_cores();

/// The CPU quota of this process's cgroup and its ancestors (docker --cpus, a Kubernetes limit) in cores, rounded up, at least 1; INT_MAX
/// without a readable one. cgroup versions 1 and 2. `of_process`: the format of /proc/self/cgroup; `mounted`: where cgroups are.
int num_quota_cores(const std::string& of_process = "/proc/self/cgroup", const std::string& mounted = "/sys/fs/cgroup");

/// Peak resident memory. Shared memory counts by this process's current proportion.
int64_t peak_memory_bytes();
/// Resident pages of files, mostly of libraries.
int64_t resident_file_bytes();

/// Memory that this process may still allocate: what is free on the host, limited by its cgroups (version 1 or 2). Page cache that the
/// kernel can drop counts as free.
int64_t available_memory_bytes();

/// Makes the C library keep freed memory instead of returning it to the kernel: a training step allocates the same tensors again, and each
/// returned page would be a page fault (and zeroing) in the next step. Peak memory is unchanged.
COHORT_PROGRAM_API void keep_freed_memory();

/// CPU time used by this process.
inline double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Number of forks in this process's ancestry since the first call, so a child's differs from its parent's. One load.
int fork_count();

/// Counts the instructions that the constructing thread executes in user mode (perf_event_open(2)). Virtual machines often have no such
/// counter, and kernel.perf_event_paranoid above 2 forbids it.
class InstructionCount {
 public:
  InstructionCount();
  /// Instructions since construction; nullopt without a counter.
  std::optional<int64_t> read() const;

 private:
  UniqueDescriptor counter_;
};

}  // namespace cohort
