#pragma once
// How fast the ranks of a group exchange, measured on the spot.

#include "cohort/comm/group.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

/// Runs small, then ever larger all-reduces: until one takes 80 ms or they took `budget_seconds` (of rank 0's clock), so that neither a
/// short burst that a network lets through nor the latency decides the result; 4 MiB at most. The last size runs three times more.
/// Collective; every rank gets rank 0's numbers.
LinkEstimate measure_link(Group& group, double budget_seconds = 0.5);

}  // namespace cohort
