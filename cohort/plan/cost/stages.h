#pragma once
// The stages of a profile, what they take of a micro-batch and what they hand over.

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cohort/plan/profile/profile.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// As cut_layers(), with the profile's names.
StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of);

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

}  // namespace cohort
