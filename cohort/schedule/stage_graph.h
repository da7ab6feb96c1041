#pragma once
// Layers cut into stages: the layers of each, and the values passed between them. Any set of edges may be cut, so skip connections and
// parallel branches need no special case. Torch-free: the runtime cuts a LayerGraph (pipeline/stage_cut.h), the planner a Profile
// (plan/cost/cut_layers.h).

#include <cstddef>
#include <utility>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// Seconds of a micro-batch in each stage.
struct StageSeconds {
  std::vector<double> forward, backward_input, backward_weight;
  bool empty() const { return forward.empty(); }
};

/// Which layers form which stage, and which worker of the pipeline axis runs it.
struct StageAssignment {
  std::vector<int> stage_of;         ///< Of each layer.
  std::vector<int> worker_of_stage;  ///< Coordinate on the pipe axis.
  StageSeconds seconds = {};         ///< Order the weight parts of zb-h1 and zb-v; empty: equal times.
};

/// Outputs of layers of `from` read by layers of `to`, ascending. May be empty where the two only share a weight.
struct StageEdge {
  int from = 0, to = 0;
  std::vector<int> values;
};

struct COHORT_API StageGraph {
  std::vector<int> stage_of;             ///< Of each layer.
  std::vector<std::vector<int>> layers;  ///< Per stage, ascending.
  std::vector<StageEdge> edges;          ///< By (from, to).

  int num_stages() const { return static_cast<int>(layers.size()); }
  std::vector<std::pair<int, int>> stage_edges() const;  ///< For a Schedule.
};

/// The stage of each layer where stages are consecutive layers, by the first layer of each ({0, 3, 7}).
COHORT_API std::vector<int> stage_of_layers(const std::vector<int>& first_layers, size_t num_layers);

}  // namespace cohort
