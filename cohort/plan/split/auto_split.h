#pragma once
// What split=auto means.

#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/plan/split/split.h"

namespace cohort {

/// The cut with the least forecast of a step under the layout's schedule, from those with the fastest slowest rank on (plan/split.h);
/// within options.memory_bytes. `worker_of_stage`: where the schedule has the stages. Errors as best_split()'s.
COHORT_PROGRAM_API Split auto_split(const Profile& profile, const Layout& layout, const SplitOptions& options,
                                    const std::vector<int>& worker_of_stage);

}  // namespace cohort
