#pragma once
// A model cut into stages: their layers, and the values passed between them. Any set of edges may be cut, so skip connections and parallel
// branches need no special case.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

class LayerGraph;

/// A weight used by layers of several stages. The first stage owns and trains it; the others borrow its value before each step and return
/// their gradients.
struct TiedWeight {
  std::string name;       ///< In the owner's stage: the name under which the model saves it.
  int owner = 0;          ///< Stage.
  std::string user_name;  ///< In the user's stage.
  int user = 0;
};

struct COHORT_API StageCut : StageGraph {
  std::vector<TiedWeight> tied;

  int last_stage() const { return stage_of.back(); }
  bool reads_input(const LayerGraph& graph, int stage) const;
};

/// Error(kBadInput) where a value would flow to a lower stage, or a stage has no layer.
COHORT_API StageCut cut_graph(const LayerGraph& graph, std::vector<int> stage_of);
/// Stages of consecutive layers. Error(kBadInput) where their first layers do not ascend from 0.
COHORT_API StageCut cut_at(const LayerGraph& graph, const std::vector<int>& first_layers);
/// Stages of a layout file. Error(kBadInput) for a layer that is unknown, missing or named twice.
COHORT_API StageCut cut_by_layout(const LayerGraph& graph, const Layout& layout);

/// LayerGraph::run_layer(). Error(kBadInput) for a layer that works in place on what another stage handed over.
COHORT_API at::Tensor run_layer_of_stage(const LayerGraph& graph, size_t layer, const std::vector<at::Tensor>& inputs);

}  // namespace cohort
