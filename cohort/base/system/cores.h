#pragma once
// How many cores there are to use.

#include <string>

namespace cohort {

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

}  // namespace cohort
