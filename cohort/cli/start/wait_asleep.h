#pragma once
// Makes OpenMP's threads sleep while they wait if other programs use the cores. Internal to the command line.

namespace cohort {

/// The number of other running threads of this machine: the median of a few samples of procs_running (/proc/stat) within some milliseconds,
/// less this one. 0 if it is not known.
int num_running_elsewhere();

/// If the verb of `argv` computes, other threads are running, and the environment does not set how OpenMP waits, the program starts itself
/// again with OMP_WAIT_POLICY=passive, which is read only when LibTorch is loaded. A training reports it. Else, and if that fails, returns.
/// Call before any thread is started.
void wait_asleep_where_cores_are_taken(int argc, char** argv);

}  // namespace cohort
