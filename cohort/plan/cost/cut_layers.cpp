#include "cohort/plan/cost/cut_layers.h"

#include <algorithm>
#include <map>
#include <set>

#include "cohort/base/fail.h"

namespace cohort {

std::vector<std::pair<int, int>> StageGraph::stage_edges() const {
  std::vector<std::pair<int, int>> pairs;
  for (const StageEdge& edge : edges) pairs.emplace_back(edge.from, edge.to);
  return pairs;
}

StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of) {
  StageGraph cut;
  cut.stage_of = std::move(stage_of);
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
    if (cut.stage_of[layer] < 0)
      fail(ErrorCode::kBadInput, "layer '", name_of(static_cast<int>(layer)), "' is in stage ", cut.stage_of[layer],
           "; stages count from 0");
  const int num_stages = cut.stage_of.empty() ? 0 : 1 + *std::max_element(cut.stage_of.begin(), cut.stage_of.end());
  cut.layers.resize(static_cast<size_t>(num_stages));
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
    cut.layers[static_cast<size_t>(cut.stage_of[layer])].push_back(static_cast<int>(layer));
  for (int stage = 0; stage < num_stages; ++stage)
    if (cut.layers[static_cast<size_t>(stage)].empty()) fail(ErrorCode::kBadInput, "stages: stage ", stage, " has no layer");
  std::map<std::pair<int, int>, std::set<int>> values;
  for (const auto& [source, reader] : layer_edges) {
    if (source < 0) continue;
    const int from = cut.stage_of[static_cast<size_t>(source)], to = cut.stage_of[static_cast<size_t>(reader)];
    if (from > to)
      fail(ErrorCode::kBadInput, "stages: layer '", name_of(reader), "' of stage ", to, " reads layer '", name_of(source),
           "' of the later stage ", from, "; number the stages so that values flow from lower to higher ones");
    if (from != to) values[{from, to}].insert(source);
  }
  for (const auto& owner_and_user : tied) values[owner_and_user];
  for (const auto& [ends, crossing] : values) cut.edges.push_back({ends.first, ends.second, {crossing.begin(), crossing.end()}});
  return cut;
}

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

bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages) {
  return std::any_of(tied.begin(), tied.end(), [&](const std::pair<int, int>& pair) {
    const int owner = stages.stage_of[static_cast<size_t>(pair.first)], user = stages.stage_of[static_cast<size_t>(pair.second)];
    return owner != user && stages.worker_of_stage[static_cast<size_t>(owner)] == stages.worker_of_stage[static_cast<size_t>(user)];
  });
}

std::vector<int> stage_of_layers(const std::vector<int>& first_layers, size_t num_layers) {
  std::vector<int> stage_of(num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer)
    stage_of[layer] =
        static_cast<int>(std::upper_bound(first_layers.begin(), first_layers.end(), static_cast<int>(layer)) - first_layers.begin()) - 1;
  return stage_of;
}

}  // namespace cohort
