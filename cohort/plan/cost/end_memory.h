#pragma once
// Bytes of what a run does beside its steps: it evaluates, and at the end a model of text writes some. Torch-free; formulas in
// end_memory.cpp.

#include <cstdint>
#include <vector>

#include "cohort/plan/profile/profile.h"

namespace cohort {

/// Samples of a chunk of the evaluation: as many as a global batch has, over accumulate, 8 to 250; the same for every number of workers, so
/// that they add up the same numbers. Under a limit of memory no more than a micro-batch, so that it fits where a step did.
int64_t evaluation_samples(int64_t global_batch, int64_t accumulate, int64_t micro_batch, bool has_limit);

/// Most that a forward without a backward holds of these layers (rising) at once.
int64_t forward_only_bytes(const Profile& profile, const std::vector<int>& layers);

/// The same with the loss of an evaluation. `tp`: ranks that have a part of the scores each and make them whole.
int64_t evaluation_bytes(const Profile& profile, const std::vector<int>& layers, int tp);

}  // namespace cohort
