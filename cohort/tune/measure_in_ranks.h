#pragma once
// Measurements whose ranks are forked: rank 0 is another process, and what it measured must come back.

#include <functional>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/world/world.h"

namespace cohort {

/// Runs `measure` in `num_ranks` forked ranks with one compute thread each and returns what rank 0 returned. The calling process must have
/// one thread. Error with the code of the rank that failed first and no text: its message is on stderr.
COHORT_PROGRAM_API Json measure_in_ranks(int num_ranks, const std::string& backend,
                                         const std::function<Json(const World& world, Group& group)>& measure);

}  // namespace cohort
