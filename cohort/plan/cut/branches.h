#pragma once
// Which layers of a model with parallel branches go to which rank, so that branches run side by side and join again. Torch-free.

#include <utility>
#include <vector>

#include "cohort/plan/profile/profile.h"

namespace cohort {

struct BranchPlacement {
  std::vector<int> first_layer;  ///< Of each stage; stages are runs of the layers in their order. first_layer[0] == 0.
  std::vector<int> rank;         ///< Of each stage, from 0 without gaps; a rank may have many stages, and not all ranks need have one.
  std::vector<std::pair<int, int>> edges;  ///< (from, to), from < to, sorted, each once: which stage hands values to which.
  double seconds = 0;                      ///< Estimate for forward and backward of one micro-batch,
  double one_rank_seconds = 0;             ///< and without any placement: never less.
  bool exact = true;                       ///< No other placement of whole branches has a lower estimate; false where there were too many.

  int num_stages() const { return static_cast<int>(first_layer.size()); }
};

/// The placement on at most `num_ranks` ranks with the least estimated time, by branch and bound where that ends soon, else greedily: see
/// branches.cpp. A model without branches is one stage. Memory is not looked at. Error(kBadInput) for a profile that is none.
BranchPlacement place_branches(const Profile& profile, int num_ranks);

}  // namespace cohort
