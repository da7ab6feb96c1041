#pragma once
// The last rungs: profiles of the same model with shorter inputs, and of a smaller one. Torch-free.

#include <string>

#include "cohort/job/config.h"
#include "cohort/plan/ladder.h"

namespace cohort {

/// For the model, data, context and image size of `config`. `request` has the profile as it is, and its cluster: one from shapes is made
/// anew, one that was measured is scaled by what shapes say of the difference. Keeps copies.
LadderSources ladder_sources(const Config& config, const SearchRequest& request);

}  // namespace cohort
