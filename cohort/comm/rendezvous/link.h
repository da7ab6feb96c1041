#pragma once
// How fast the ranks of a group exchange, measured on the spot.

#include "cohort/comm/group.h"

namespace cohort {

struct LinkEstimate {
  double latency_seconds = 0;   ///< Of one all-reduce of a few bytes.
  double bytes_per_second = 0;  ///< That each rank sends in a large all-reduce, and receives at the same time; 0: one rank, no link.

  /// Seconds of `num_exchanges` collectives, one after the other, in which this rank sends `sent_bytes` in all.
  double seconds(int64_t sent_bytes, int num_exchanges) const {
    return bytes_per_second > 0 ? num_exchanges * latency_seconds + static_cast<double>(sent_bytes) / bytes_per_second : 0;
  }
};

/// Runs small, then ever larger all-reduces: until one takes 80 ms or they took `budget_seconds` (of rank 0's clock), so that neither a
/// short burst that a network lets through nor the latency decides the result; 4 MiB at most. The last size runs three times more.
/// Collective; every rank gets rank 0's numbers.
LinkEstimate measure_link(Group& group, double budget_seconds = 0.5);

}  // namespace cohort
