#pragma once
// The stages of a profile.

#include <vector>

#include "cohort/plan/profile/profile.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// As cut_layers(), with the profile's names.
StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of);

}  // namespace cohort
