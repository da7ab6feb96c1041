#pragma once
// A model cut into stages: which layers each has, and which values pass from stage to stage. Any set of edges may be cut, so skip
// connections and parallel branches need nothing special.

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

/// A weight that layers of several stages use. It lives, and is trained, in the first; the others get its value before each step and hand
/// their gradients back.
struct TiedWeight {
  std::string name;       ///< In the stage that owns it: the name under which the whole model saves it.
  int owner = 0;          ///< Stage.
  std::string user_name;  ///< In the stage that uses it.
  int user = 0;
};

struct COHORT_API StageCut : StageGraph {
  std::vector<TiedWeight> tied;

  int last_stage() const { return stage_of.back(); }
  bool reads_input(const LayerGraph& graph, int stage) const;
};

/// Error(kBadInput) where a value would flow from a higher stage to a lower one, or a stage has no layer.
COHORT_API StageCut cut_graph(const LayerGraph& graph, std::vector<int> stage_of);
/// Stages that are runs of layers. Error(kBadInput) where their first layers do not rise from 0.
COHORT_API StageCut cut_at(const LayerGraph& graph, const std::vector<int>& first_layers);
/// Stages of a layout file. Error(kBadInput) for a layer that is unknown, missing or named twice.
COHORT_API StageCut cut_by_layout(const LayerGraph& graph, const Layout& layout);

/// LayerGraph::run_layer(). Error(kBadInput) for a layer that works in place on what another stage handed over.
COHORT_API at::Tensor run_layer_of_stage(const LayerGraph& graph, size_t layer, const std::vector<at::Tensor>& inputs);

}  // namespace cohort
