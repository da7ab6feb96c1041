#pragma once
// The arithmetic of model-parallel ranks by one process, in their order of sums: values that cross pipeline stages, and products in the
// pieces of tensor-parallel ranks.

#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/train/train_options.h"

namespace cohort {

class LayerGraph;

/// The stage and worker of a layer.
struct LayerStage {
  std::string layer;
  int stage = 0, worker = 0;
};

/// A tied weight in a stage that does not own it.
struct TiedUse {
  std::string name;  ///< "output.weight"
  int owner_stage = 0, stage = 0;
  bool of_same_worker = false;  ///< One worker has both stages, and one tensor.
};

/// Wraps the functions of `model` where a value is read in another stage: values are contiguous there, and gradients are added in the order
/// of a pipeline. `stages`: one a layer, or empty.
void cross_stages(LayerGraph& model, const std::vector<LayerStage>& stages);

/// The order in which the workers of `layout` add weight gradients, by their schedule; the same in all pipelines. Called before the model
/// changes.
BackwardOrder backward_order(const LayerGraph& model, const Layout& layout, const std::vector<LayerStage>& stages);

/// Replaces functions of `model` so that it computes each product in the pieces of `layout`'s tensor ranks, added in rank order, and so
/// that linear layers use copies of the tied weights `borrowed`. The implementation is independent of tensor/, so that a mistake there is
/// not repeated here: weights are whole, and nothing is exchanged. Error(kBadInput) for a layer without such an implementation.
AlteredModel compute_in_pieces(LayerGraph& model, const Layout& layout, const std::vector<TiedUse>& borrowed);

}  // namespace cohort
