#pragma once
// What tensor-parallel ranks compute, by one process: each product in the pieces that the ranks have, added up in rank order. A plain
// implementation beside tensor/, from the formulas in the heads of its rules, so that a mistake there is not repeated here: weights stay
// whole, and nothing is exchanged.

#include <vector>

#include "cohort/job/layout.h"
#include "cohort/run/train_job.h"
#include "cohort/verify/crossings.h"

namespace cohort {

class LayerGraph;

/// Replaces functions of `model` so that it computes as `layout`'s tensor ranks do together, and so that each of the tied weights
/// `borrowed` is a copy where its layer is linear. Error(kBadInput) for a layer that no plain implementation is written for.
AlteredModel compute_in_pieces(LayerGraph& model, const Layout& layout, const std::vector<TiedUse>& borrowed);

}  // namespace cohort
