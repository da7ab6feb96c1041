#pragma once
// Which layers of a stage to run again in backward, so that it fits. Torch-free.

#include <cstdint>
#include <vector>

#include "cohort/plan/profile/profile.h"

namespace cohort {

struct RecomputeOptions {
  int first_layer = 0, end_layer = 0;  ///< The stage is layers [first_layer, end_layer).
  int kept_micro_batches = 1;          ///< At most at once: peak_stash of check_schedule().
  int64_t memory_bytes = 0;            ///< Of the stage's rank; 0: no limit.
  double optimizer_bytes_factor = 1;   ///< As in SplitOptions.
};

struct RecomputeChoice {
  std::vector<bool> layers;  ///< One a layer of the profile; only layers of the stage are set. For LayerGraph::set_recompute().
  double seconds = 0;        ///< What it costs: a second forward of these layers, a micro-batch.
  int64_t memory_bytes = 0;
  bool exact = true;  ///< No cheaper set fits; false where there were too many.
};

/// Memory of the stage is
///   weights x (2 + optimizer_bytes_factor) + kept micro-batches x (received + kept) + the largest stash of a recomputed layer
/// where a recomputed layer keeps nothing but its inputs, and its output where another layer needs it. Without recomputed layers this is
/// the memory of a stage of a Split.
///
/// The cheapest set that fits, by branch and bound where that ends soon, else by seconds for each byte: see recompute_choice.cpp. Error
/// (kInfeasible) with the least memory where no set fits, Error(kBadInput) for a stage that is none.
RecomputeChoice choose_recompute(const Profile& profile, const RecomputeOptions& options);

}  // namespace cohort
