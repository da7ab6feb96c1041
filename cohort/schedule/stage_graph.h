#pragma once
// Layers cut into stages: which layers each has, and which values pass from stage to stage. Any set of edges may be cut, so skip
// connections and parallel branches need nothing special. Torch-free: the runtime cuts a LayerGraph with it (pipeline/stage_cut.h), the
// planner a Profile (plan/cost/cut_layers.h).

#include <cstddef>
#include <utility>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// What a micro-batch takes in each stage.
struct StageSeconds {
  std::vector<double> forward, backward_input, backward_weight;
  bool empty() const { return forward.empty(); }
};

/// Which layers form which stage, and which worker of the pipeline axis runs it.
struct StageAssignment {
  std::vector<int> stage_of;         ///< Of each layer.
  std::vector<int> worker_of_stage;  ///< Place on the pipe axis.
  StageSeconds seconds = {};         ///< By which zb-h1 and zb-v order their weight parts; empty: as if all took the same.
};

/// Outputs of layers of `from` that layers of `to` read, in rising order. May be empty where the two only share a weight.
struct StageEdge {
  int from = 0, to = 0;
  std::vector<int> values;
};

struct COHORT_API StageGraph {
  std::vector<int> stage_of;             ///< Of each layer.
  std::vector<std::vector<int>> layers;  ///< Of each stage, rising.
  std::vector<StageEdge> edges;          ///< By (from, to).

  int num_stages() const { return static_cast<int>(layers.size()); }
  std::vector<std::pair<int, int>> stage_edges() const;  ///< For a Schedule.
};

/// The stage of each layer where stages are runs of layers, by the first layer of each ({0, 3, 7}).
COHORT_API std::vector<int> stage_of_layers(const std::vector<int>& first_layers, size_t num_layers);

}  // namespace cohort
