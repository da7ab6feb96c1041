#pragma once
// How fast the ranks of one host together move memory: what bounds large exchanges.

#include "cohort/base/export.h"
#include "cohort/comm/group.h"

namespace cohort {

/// Bytes per second that the memory of this host moves, read plus written, when all ranks of `group` (of one host) copy at once: the better
/// of copy (a = b) and triad (a = b + s c), best of five runs, as STREAM counts them: a line that is fetched because it is written to is
/// not counted. Collective; the same number on all ranks. Takes 192 MiB a rank and a fraction of a second.
COHORT_PROGRAM_API double memory_bandwidth(Group& group);

}  // namespace cohort
