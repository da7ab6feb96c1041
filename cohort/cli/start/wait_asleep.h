#pragma once
// Threads that wait for one another awake lose more than they gain where another program has their core. Internal to the command line.

namespace cohort {

/// How many other threads of this machine were running, as the middle of a few looks within some milliseconds: /proc/stat's procs_running
/// less this one. 0 where nothing is known.
int num_running_elsewhere();

/// Before anything is started. Where `argv` is a verb that computes, other threads are running, and the environment does not say how OpenMP
/// waits, the program starts itself again with OMP_WAIT_POLICY=passive, which is read when LibTorch is loaded and never later. A
/// training says so. Else, and where that fails, it returns.
void wait_asleep_where_cores_are_taken(int argc, char** argv);

}  // namespace cohort
