#pragma once
// The stages of a profile with their costs and transfers, and the forecast of a pipeline step from measured layers and the schedule that
// will run, which a run prints next to its measurement.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/record/start_records.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// cut_layers() with the names of the profile's layers.
StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of);

/// Seconds of one micro-batch in the layers of a stage.
struct StageWork {
  double forward = 0, backward_input = 0, backward_weight = 0;
};
/// `recompute`: one flag per layer, or empty.
StageWork work_of_stage(const Profile& profile, const std::vector<int>& layers, const std::vector<bool>& recompute);

/// Values transferred between stages.
class Handovers {
 public:
  Handovers() = default;
  /// `graph` must outlive it.
  explicit Handovers(const StageGraph& graph);
  /// Whether the stage receives a value.
  bool receives(int stage) const { return receives_.contains(stage); }
  /// Bytes of all values between two stages, in either direction.
  int64_t bytes(int from, int to, const Profile& profile) const;

 private:
  std::map<std::pair<int, int>, const std::vector<int>*> values_of_;  ///< The values of the graph's edges, keyed by their ends.
  std::set<int> receives_;
};

/// Enters the work of a stage. A stage that receives nothing sends no gradients: all of its backward is in the weight part
/// (split_backward.h).
void set_costs(StageCosts& costs, int stage, const StageWork& work, bool receives);

/// Whether the schedule splits the backward and may order its actions by the stages' costs. Not where two stages of one worker share a
/// weight: the order in which their gradients add up would depend on measured times.
bool order_follows_costs(const std::vector<std::pair<int, int>>& tied, const Layout& layout, const StageAssignment& stages);
/// What StageAssignment::seconds should be: the costs of the stages where order_follows_costs(), else empty.
StageSeconds ordering_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                              const std::vector<bool>& recompute);

/// `recompute`: one flag per layer, or empty. Error(kBadInput) for a schedule that does not fit the stages.
COHORT_PROGRAM_API PipelineRecord forecast_pipeline(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                                                    const std::vector<bool>& recompute);

/// predicted_step_seconds of forecast_pipeline().
double forecast_step_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                             const std::vector<bool>& recompute);

/// A table of the stages, one line each, times in ms.
std::string describe(const PipelineRecord& forecast);

}  // namespace cohort
