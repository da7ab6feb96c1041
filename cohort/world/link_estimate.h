#pragma once
// The link of a group as it was measured, and what an exchange asks of it.

#include <cstdint>

namespace cohort {

struct LinkEstimate {
  double latency_seconds = 0;   ///< Of one all-reduce of a few bytes.
  double bytes_per_second = 0;  ///< That each rank sends in a large all-reduce, and receives at the same time; 0: one rank, no link.

  /// Seconds of `num_exchanges` collectives, one after the other, in which this rank sends `sent_bytes` in all.
  double seconds(int64_t sent_bytes, int num_exchanges) const {
    return bytes_per_second > 0 ? num_exchanges * latency_seconds + static_cast<double>(sent_bytes) / bytes_per_second : 0;
  }
};

/// What an exchange costs one rank.
struct ExchangeCost {
  int64_t sent_bytes = 0;  ///< As many are received.
  int num_exchanges = 0;   ///< Collectives one after the other: each waits for the link once.
};

}  // namespace cohort
