#pragma once
// Measures the communication speed of a group and the memory bandwidth of a host, which bounds large exchanges.

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

/// Runs all-reduces of growing size until one takes 80 ms or they took `budget_seconds` (of rank 0's clock), at most 4 MiB, so that neither
/// a short burst nor latency decides the result. The last size runs three times more. Collective; every rank gets rank 0's results.
LinkEstimate measure_link(Group& group, double budget_seconds = 0.5);

/// Bytes per second that the memory of this host moves, read plus written, when all ranks of `group` (of one host) copy at once: the better
/// of copy (a = b) and triad (a = b + s c), best of five runs, as STREAM counts them: a line that is fetched because it is written to is
/// not counted. Collective; the same number on all ranks. Takes 192 MiB a rank and a fraction of a second.
COHORT_PROGRAM_API double memory_bandwidth(Group& group);

}  // namespace cohort
