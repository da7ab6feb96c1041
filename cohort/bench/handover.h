#pragma once
// Seconds of handing a tensor from one process to another on this host, as pipeline stages do.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

struct BenchHandoverOptions {
  std::string backend = "auto";
  std::vector<int64_t> sizes;   ///< Bytes, at least 1.
  int blocks = 5;               ///< Timed blocks of each way, in turn; their median counts.
  double block_seconds = 0.02;  ///< About so long is a block, as many round trips as fit.
};

struct HandoverTime {
  int64_t bytes = 0;
  double seconds = 0;          ///< TensorChannels: from send() to the return of receive(), half a round trip.
  double message_seconds = 0;  ///< Group::send and receive into memory that is there already, likewise.
  double copy_seconds = 0;     ///< memcpy of the same bytes, by one process alone.
};

struct HandoverTimes {
  std::string backend;
  std::vector<HandoverTime> times;
};

/// Forks two ranks; the calling process must have one thread. What arrives is checked: Error(kFailed) where it is wrong. Error of the rank
/// that failed otherwise.
HandoverTimes bench_handover(const BenchHandoverOptions& options);

}  // namespace cohort
