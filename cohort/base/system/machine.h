#pragma once
// This machine and this process: cores, memory, time on the CPU, instructions and forks.

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/base/files/file.h"

namespace cohort {

// How many cores there are to use.

/// In the environment of a program that has started itself again so that OpenMP's threads wait asleep (cli/start/wait_asleep.h).
inline constexpr const char* kThreadsSleepVariable = "COHORT_THREADS_SLEEP";

/// Cores that this process may use, at least 1: those of its affinity, and not more than the quota of its cgroup pays for.
int num_usable_cores();

/// Those of its affinity alone (taskset, a batch system), not all of the machine's. At least 1.
int num_affinity_cores();

/// How many cores' time the quota of this process's cgroup allows (docker --cpus, a Kubernetes limit), rounded up, at least 1; the smallest
/// of its own and of those above it. INT_MAX without one. Both kinds of cgroups; what cannot be read or makes no sense counts as none. All
/// processes of the cgroup share it. `of_process`: the format of /proc/self/cgroup; `mounted`: where cgroups are.
int num_quota_cores(const std::string& of_process = "/proc/self/cgroup", const std::string& mounted = "/sys/fs/cgroup");

// The memory of this process.

/// The most that was resident at any time. Of memory that processes share by intent (one copy of the weights on a host) each counts its
/// part, as it is shared now.
int64_t peak_memory_bytes();
/// Pages of files, mostly of libraries, that are resident now.
int64_t resident_file_bytes();

/// What this process may still take: of the host's memory that is free, and of its control groups' limits (version 1 or 2) where those
/// leave less. Files that the kernel keeps in memory and can drop count as free.
int64_t available_memory_bytes();

/// From now on the C library keeps freed memory instead of handing it back to the kernel at once. A training step frees and asks for the
/// same tensors again; each page that was handed back would be a page fault (and zeroing) in the next step. Peak memory is unchanged. Whole
/// process.
COHORT_PROGRAM_API void keep_freed_memory();

/// Processor time used so far: unlike wall clock it leaves out what other programs of the machine take.
inline double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// How often this process and those that it comes from have been forked since they called it first: a number that a child does not share
/// with its parent. One load.
int fork_count();

// Instructions that this thread executes in user mode, counted by the CPU (perf_event_open(2)).

/// Of the thread that makes it. Virtual machines often have no such counter, and kernel.perf_event_paranoid above 2 forbids it.
class InstructionCount {
 public:
  InstructionCount();
  /// Since it was made; none where there is no counter.
  std::optional<int64_t> read() const;

 private:
  UniqueDescriptor counter_;
};

}  // namespace cohort
