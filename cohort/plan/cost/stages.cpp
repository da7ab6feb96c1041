#include "cohort/plan/cost/stages.h"

#include <algorithm>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/schedule/scheduler.h"

namespace cohort {

StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of) {
  if (stage_of.size() != profile.layers.size())
    fail(ErrorCode::kBadInput, "stages for ", stage_of.size(), " layers, and the profile has ", profile.layers.size());
  std::vector<std::pair<int, int>> tied;
  for (const auto& [owner, user] : profile.tied) {
    const std::pair<int, int> stages{stage_of[static_cast<size_t>(owner)], stage_of[static_cast<size_t>(user)]};
    if (stages.first > stages.second)
      fail(ErrorCode::kBadInput, "stages: the weight that '", profile.layers[static_cast<size_t>(owner)].name, "' of stage ", stages.first,
           " shares is used by '", profile.layers[static_cast<size_t>(user)].name, "' of the earlier stage ", stages.second,
           "; put the two into one stage");
    if (stages.first != stages.second) tied.push_back(stages);
  }
  return cut_layers(profile.edges, tied, std::move(stage_of), [&](int layer) { return profile.layers[static_cast<size_t>(layer)].name; });
}

StageWork work_of_stage(const Profile& profile, const std::vector<int>& layers, const std::vector<bool>& recompute) {
  StageWork work;
  for (const int layer : layers) {
    const LayerProfile& cost = profile.layers[static_cast<size_t>(layer)];
    const bool again = !recompute.empty() && recompute[static_cast<size_t>(layer)];
    work.forward += cost.forward_seconds;
    // The second forward runs where backward reaches the layer: in the input part.
    work.backward_input += cost.backward_input_seconds + (again ? cost.forward_seconds : 0);
    work.backward_weight += cost.backward_weight_seconds;
  }
  return work;
}

Handovers::Handovers(const StageGraph& graph) {
  for (const StageEdge& edge : graph.edges) {
    values_of_[{edge.from, edge.to}] = &edge.values;
    if (!edge.values.empty()) receives_.insert(edge.to);
  }
}

int64_t Handovers::bytes(int from, int to, const Profile& profile) const {
  int64_t bytes = 0;
  if (const auto found = values_of_.find({std::min(from, to), std::max(from, to)}); found != values_of_.end())
    for (const int value : *found->second) bytes += profile.layers[static_cast<size_t>(value)].output_bytes;
  return bytes;
}

void set_costs(StageCosts& costs, int stage, const StageWork& work, bool receives) {
  const auto at = static_cast<size_t>(stage);
  costs.forward[at] = work.forward;
  costs.backward_input[at] = receives ? work.backward_input : 0;
  costs.backward_weight[at] = work.backward_weight + (receives ? 0 : work.backward_input);
}

}  // namespace cohort
