#pragma once
// What split=auto means.

#include <functional>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/plan/cut/split.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

/// The cut with the least forecast of a step under the layout's schedule, from those with the fastest slowest rank on (split.h);
/// within options.memory_bytes. `worker_of_stage`: where the schedule has the stages. Errors as best_split()'s.
COHORT_PROGRAM_API Split auto_split(const Profile& profile, const Layout& layout, const SplitOptions& options,
                                    const std::vector<int>& worker_of_stage);

// A cut into stages by what the schedule makes of it, where ranks have several stages. Torch-free.

/// Seconds of a step with this cut (first layers of the stages); infinite where it does not fit.
using StepSeconds = std::function<double(const std::vector<int>& first_layer)>;

/// The cut of `num_layers` layers into as many stages as each of `starts` has, with the least `seconds`: of all cuts where they are few,
/// else of those that a search from each start meets (auto_split.cpp). Ties go to the cut met first, the starts in their order before
/// all. Error(kBadInput) where starts are none or are no cuts of that number of layers.
std::vector<int> improve_split(int num_layers, const std::vector<std::vector<int>>& starts, const StepSeconds& seconds);

}  // namespace cohort
