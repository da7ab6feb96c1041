#pragma once
// Measured latency and bandwidth of a group, and the cost of an exchange.

#include <cstdint>

namespace cohort {

struct LinkEstimate {
  double latency_seconds = 0;   ///< Latency of a small all-reduce.
  double bytes_per_second = 0;  ///< Sent, and received at the same time, by each rank in a large all-reduce; 0 with one rank.

  /// Duration of `num_exchanges` consecutive collectives in which this rank sends `sent_bytes` in total.
  double seconds(int64_t sent_bytes, int num_exchanges) const {
    return bytes_per_second > 0 ? num_exchanges * latency_seconds + static_cast<double>(sent_bytes) / bytes_per_second : 0;
  }
};

/// Cost of an exchange for one rank.
struct ExchangeCost {
  int64_t sent_bytes = 0;  ///< The same number is received.
  int num_exchanges = 0;   ///< Consecutive collectives; each adds one latency.
};

}  // namespace cohort
