#pragma once
// What the runtime and the planner need of schedules beside their public headers: layers cut into stages, the schedule that a layout means,
// the proof that it is one, and its chart in milliseconds. Torch-free.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// `layer_edges`: (layer, layer that reads it), -1 for the model's input; `tied`: (owner, user) stages that share a weight.
/// Error(kBadInput) where a value would flow from a higher stage to a lower one, or a stage has no layer; `name_of` says what the layers
/// are called in it.
StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of);

/// Whether two stages of one worker have layers that share a weight; `tied`: (owner, user) layers.
bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages);

/// Which schedule a layout means, for any number of micro-batches: the layout's named schedule where the stages lie as that one has them,
/// the table of its file, or one made for this placement (make_graph_schedule). Immutable.
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

/// The one that ranks will run, as the runner makes it. Pipelines side by side are alike, so one of them stands for all. `seconds`: as
/// Scheduler takes them.
Schedule schedule_of(const Layout& layout, const StageGraph& graph, const std::vector<int>& worker_of_stage, const StageSeconds& seconds,
                     int num_micro_batches);

struct ScheduleFacts {
  std::vector<int> peak_stash;        ///< One a rank: most (stage, micro-batch) pairs whose activations are kept at once (forward done,
                                      ///< backward not; with split backward until the weight part is done).
  std::vector<int> peak_input_stash;  ///< The same until the input part is done.
  int num_messages = 0;               ///< Transfers.
};

/// Error(kBadInput) that names rank, position and action of the first thing that is wrong; else facts. Checks: every (stage, micro-batch)
/// has one forward, and one backward or one input and one weight part, on one rank, in that order; what an action needs from its own rank
/// is done before it; every edge between ranks has its four transfers, sends match receives and come in the same order for every pair of
/// ranks; running all ranks at once, each waiting at receives, comes to an end. Schedules without any transfer are checked as
/// add_transfers() would complete them.
ScheduleFacts check_schedule(const Schedule& schedule);

/// As timeline_svg() of simulate.h, with times in milliseconds, and their unit beside them.
std::string timeline_svg_of_seconds(const Timeline& timeline);

}  // namespace cohort
