#pragma once
// Times collective operations of this library, of LibTorch's Gloo and of MPI in one run of forked ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/world/world.h"

namespace cohort {

struct BenchCollectivesOptions {
  int num_ranks = 2;
  std::vector<std::string> backends;  ///< Names from collective_backends() or collective_peers().
  std::vector<std::string> ops;       ///< Names from collective_ops().
  std::vector<int64_t> sizes;         ///< Bytes; of the whole tensor where ranks hold parts (all-gather's output, reduce-scatter's input).
  int blocks = 5;                     ///< Timed blocks of each, in turn; their median counts.
  double block_seconds = 0.02;        ///< About so long is a block, as many calls as fit.
  bool measure_memory = false;
};

struct CollectiveTime {
  std::string op, backend;
  int64_t bytes = 0;
  double seconds = 0;  ///< Time of one call.
};

struct CollectiveTimes {
  std::vector<CollectiveTime> times;
  double memory_bytes_per_second = 0;  ///< See link.h; 0 unless asked for.
};

/// shm: memory from Group::allocate; shm-private: memory of the rank's own, staged; gloo: our transport over Gloo; pytorch-gloo: LibTorch's
/// ProcessGroupGloo alone.
const std::vector<std::string>& collective_backends();
/// open-mpi, mpich: their own collectives; only in ranks that their mpirun started.
const std::vector<std::string>& collective_peers();
/// allreduce, reducescatter, allgather, broadcast, barrier.
const std::vector<std::string>& collective_ops();

/// Forks its ranks; the calling process must have one thread. Sizes that cannot be cut into a float for each rank are left out where ranks
/// hold parts. Every block's result is checked: Error(kFailed) where a sum is wrong. Error of the rank that failed otherwise.
CollectiveTimes bench_collectives(const BenchCollectivesOptions& options);
/// Measures in this rank of a job that a launcher started on one host; options.num_ranks is ignored. The times are rank 0's own: what
/// other ranks return is for nobody. Takes collective_peers(), too.
CollectiveTimes bench_collectives_in_rank(const BenchCollectivesOptions& options, const World& world);

// Times how soon survivors detect a peer that was killed or stopped during an exchange.

struct BenchFaultsOptions {
  int num_ranks = 2;
  std::string backend = "auto";
  int trials = 100;
  bool stop = false;             ///< SIGSTOP instead of SIGKILL, which only the time-out detects.
  double timeout_seconds = 2.0;  ///< Time-out of the group.
};

struct FaultTimes {
  std::vector<double> seconds;  ///< From the signal to the error of the slowest survivor, for each trial.
  int num_named = 0;            ///< Trials in which every survivor's error named the rank that was lost.
  std::string example;          ///< One survivor's error.
};

/// In each trial forks ranks that all-reduce 1 MiB without end; after a random time of 5 to 50 ms the last rank signals itself from another
/// thread. The calling process must have one thread. Error(kFailed) when a survivor does not notice within the time-out and 10 s.
FaultTimes bench_faults(const BenchFaultsOptions& options);

}  // namespace cohort
