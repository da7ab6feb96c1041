#pragma once
// How many cores there are to use.

namespace cohort {

/// Cores that this process may use: those of its affinity (taskset, a batch system), not all of the machine's. At least 1. A quota of a
/// cgroup (docker --cpus) is time, not cores, and is not seen.
int num_usable_cores();

}  // namespace cohort
