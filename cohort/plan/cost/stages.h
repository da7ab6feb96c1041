#pragma once
// Layers cut into a StageGraph; what its stages take of a micro-batch and hand over; the schedule that their ranks run.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/cost/stage_graph.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

/// `layer_edges` as in Profile, where -1 is the model's input; `tied`: (owner, user) stages that share a weight. Error(kBadInput) where a
/// value would flow from a higher stage to a lower one, or a stage has no layer; `name_of` says what the layers are called in it.
StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of);
/// Of a profile.
StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of);

/// Whether two stages of one worker have layers that share a weight; `tied` as in Profile.
bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages);

/// Seconds of one micro-batch in the layers of a stage.
struct StageWork {
  double forward = 0, backward_input = 0, backward_weight = 0;
};
/// `recompute`: one flag a layer, or empty.
StageWork work_of_stage(const Profile& profile, const std::vector<int>& layers, const std::vector<bool>& recompute);

/// Values that stages hand over.
class Handovers {
 public:
  Handovers() = default;
  /// `graph` must outlive it.
  explicit Handovers(const StageGraph& graph);
  /// Whether the stage gets a value of another.
  bool receives(int stage) const { return receives_.contains(stage); }
  /// Of all values between two stages, either way.
  int64_t bytes(int from, int to, const Profile& profile) const;

 private:
  std::map<std::pair<int, int>, const std::vector<int>*> values_of_;  ///< Of the graph's edges, by their ends.
  std::set<int> receives_;
};

/// Enters the work of a stage. One that receives nothing owes no gradients: all of its backward is in the weight part (split_backward.h).
void set_costs(StageCosts& costs, int stage, const StageWork& work, bool receives);

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

}  // namespace cohort
