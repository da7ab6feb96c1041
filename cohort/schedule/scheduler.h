#pragma once
// Used by the runtime and the planner besides the public headers: layers cut into stages, the schedule of a layout, its checker, and its
// chart in milliseconds. Torch-free.

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

/// `layer_edges`: (layer, its reader), -1 for the model's input; `tied`: (owner, user) stages that share a weight. Error(kBadInput) where a
/// value would flow to a lower stage, or a stage has no layer; `name_of` returns names of layers for it.
StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of);

/// Whether two stages of one worker share a weight; `tied`: (owner, user) layers.
bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages);

/// The schedule of a layout for any number of micro-batches: the named schedule where the stages are placed as it places them, the table of
/// a file, or one made for the placement (make_graph_schedule). Immutable.
class Scheduler {
 public:
  /// `ranks_of_stage`: ranks of the pipeline's group by stage. `seconds`: times of the stages, by which schedules with split backward are
  /// ordered. Error(kBadInput) for an unknown name or an invalid file.
  Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
            const StageSeconds& seconds = {});

  Schedule operator()(int num_micro_batches) const;

 private:
  bool is_placed_as_named() const;

  std::string name_;
  int num_workers_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<std::vector<int>> ranks_of_stage_;
  Schedule file_;
  bool by_name_ = false;
  std::shared_ptr<const StageCosts> costs_;  // Null: equal costs.
};

/// The schedule that the runner will use. Parallel pipelines are alike, so one of them represents all. `seconds`: as for Scheduler.
Schedule schedule_of(const Layout& layout, const StageGraph& graph, const std::vector<int>& worker_of_stage, const StageSeconds& seconds,
                     int num_micro_batches);

struct ScheduleFacts {
  std::vector<int> peak_stash;        ///< Per rank the peak of (stage, micro-batch) pairs with stashed activations (forward done,
                                      ///< backward not; with split backward until the weight part is done).
  std::vector<int> peak_input_stash;  ///< The same until the input part is done.
  int num_messages = 0;               ///< Transfers.
};

/// Error(kBadInput) naming rank, position and action of the first violation, else facts. Checks: every (stage, micro-batch) has one
/// forward, and one backward or one input and one weight part, on one rank, in that order; an action follows what it needs from its own
/// rank; every edge between ranks has its four transfers; sends match receives in the same order for every pair of ranks; running all
/// ranks, each waiting at receives, ends. Schedules without transfers are checked as add_transfers() would complete them.
ScheduleFacts check_schedule(const Schedule& schedule);

/// timeline_svg() (simulate.h) in milliseconds.
std::string timeline_svg_of_seconds(const Timeline& timeline);

}  // namespace cohort
