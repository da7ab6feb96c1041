#pragma once
// Layers cut into stages: which layers each has, and which values pass from stage to stage. Any set of edges may be cut, so skip
// connections and parallel branches need nothing special. Torch-free: the runtime cuts a LayerGraph with it (pipeline/stage_cut.h), the
// planner a Profile (plan/cost/cut_layers.h).

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"

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

/// `layer_edges`: (layer, layer that reads it), -1 for the model's input; `tied`: (owner, user) stages that share a weight.
/// Error(kBadInput) where a value would flow from a higher stage to a lower one, or a stage has no layer; `name_of` says what the layers
/// are called in it.
StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of);

/// Whether two stages of one worker have layers that share a weight; `tied`: (owner, user) layers.
bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages);

// Which schedule a layout means, for any number of micro-batches.

/// The layout's named schedule where the stages lie as that one has them, the table of its file, or one made for this placement
/// (make_graph_schedule). Immutable.
class Scheduler {
 public:
  /// `ranks_of_stage`: ranks of the pipeline's group that run each stage. `seconds`: what the stages take, where schedules that split the
  /// backward are to be ordered by that. Error(kBadInput) for a name that is none or a file that is bad.
  Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
            const StageSeconds& seconds = {});

  Schedule operator()(int num_micro_batches) const;

 private:
  bool lies_as_named() const;

  std::string name_;
  int num_workers_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<int>> ranks_of_stage_;
  Schedule file_;
  bool by_name_ = false;
  std::shared_ptr<const StageCosts> costs_;  // Null: all alike.
};

}  // namespace cohort
