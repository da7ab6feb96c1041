#pragma once
// Values that cross from one stage of a pipeline to another, in one process: with the memory layout that they have after the way, and with
// their gradients added up in the order in which a pipeline adds them.

#include <string>
#include <vector>

#include "cohort/models/layer_graph.h"

namespace cohort {

/// Who runs a layer.
struct LayerStage {
  std::string layer;
  int stage = 0, worker = 0;
};

/// Wraps the functions of `model` where a value is read in another stage than the one that makes it. `stages`: one a layer, or empty: none.
void cross_stages(LayerGraph& model, const std::vector<LayerStage>& stages);

}  // namespace cohort
