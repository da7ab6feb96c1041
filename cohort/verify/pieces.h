#pragma once
// What ranks of a model-parallel layout compute, by one process and in their order of sums: values that cross stages of a pipeline, and
// products in the pieces that tensor ranks have.

#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/train/train_options.h"

namespace cohort {

class LayerGraph;

// Values that cross from one stage of a pipeline to another, in one process: with the memory layout that they have after the way, and with
// their gradients added up in the order in which a pipeline adds them.

/// Who runs a layer.
struct LayerStage {
  std::string layer;
  int stage = 0, worker = 0;
};

/// A tied weight in a stage that does not own it.
struct TiedUse {
  std::string name;  ///< "output.weight"
  int owner_stage = 0, stage = 0;
  bool of_same_worker = false;  ///< Which has one tensor for both.
};

/// Wraps the functions of `model` where a value is read in another stage than the one that makes it. `stages`: one a layer, or empty: none.
void cross_stages(LayerGraph& model, const std::vector<LayerStage>& stages);

/// In which order the workers of `layout`, all pipelines alike, add gradients of weights: where their schedule has the backward of a whole
/// stage, or the part of it that is about weights. Before the model changes.
BackwardOrder backward_order(const LayerGraph& model, const Layout& layout, const std::vector<LayerStage>& stages);

// What tensor-parallel ranks compute, by one process: each product in the pieces that the ranks have, added up in rank order. A plain
// implementation beside tensor/, from the formulas in the heads of its rules, so that a mistake there is not repeated here: weights stay
// whole, and nothing is exchanged.

/// Replaces functions of `model` so that it computes as `layout`'s tensor ranks do together, and so that each of the tied weights
/// `borrowed` is a copy where its layer is linear. Error(kBadInput) for a layer that no plain implementation is written for.
AlteredModel compute_in_pieces(LayerGraph& model, const Layout& layout, const std::vector<TiedUse>& borrowed);

}  // namespace cohort
