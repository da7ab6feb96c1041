#pragma once
// How soon survivors hear of a peer that was killed or stopped in the middle of an exchange.

#include <string>
#include <vector>

namespace cohort {

struct BenchFaultsOptions {
  int num_ranks = 2;
  std::string backend = "auto";
  int trials = 100;
  bool stop = false;             ///< SIGSTOP instead of SIGKILL: only the time-out tells.
  double timeout_seconds = 2.0;  ///< Of the group.
};

struct FaultTimes {
  std::vector<double> seconds;  ///< From the signal to the error of the slowest survivor, one a trial.
  int num_named = 0;            ///< Trials in which every survivor's error named the rank that was lost.
  std::string example;          ///< One survivor's error.
};

/// In each trial forks ranks that all-reduce 1 MiB without end; after a random time of 5 to 50 ms the last rank signals itself from another
/// thread. The calling process must have one thread. Error(kFailed) when a survivor does not notice within the time-out and 10 s.
FaultTimes bench_faults(const BenchFaultsOptions& options);

}  // namespace cohort
