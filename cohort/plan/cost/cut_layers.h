#pragma once
// Makes a StageGraph: of any layers with edges, of a profile.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/plan/cost/stage_graph.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

/// `layer_edges` as in Profile, where -1 is the model's input; `tied`: (owner, user) stages that share a weight. Error(kBadInput) where a
/// value would flow from a higher stage to a lower one, or a stage has no layer; `name_of` says what the layers are called in it.
StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of);
/// Of a profile.
StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of);

/// Whether two stages of one worker have layers that share a weight; `tied` as in Profile.
bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages);

}  // namespace cohort
