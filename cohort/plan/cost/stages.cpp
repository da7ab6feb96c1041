#include "cohort/plan/cost/stages.h"

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

Scheduler::Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
                     const StageSeconds& seconds)
    : name_(layout.schedule), num_workers_(layout.pp), edges_(std::move(edges)), ranks_of_stage_(std::move(ranks_of_stage)) {
  if (name_.ends_with(".json")) file_ = read_schedule_file(name_);
  else by_name_ = lies_as_named();
  if (name_.starts_with("zb") && !seconds.empty())
    costs_ = std::make_shared<StageCosts>(StageCosts{seconds.forward, seconds.backward_input, seconds.backward_weight});
}

Schedule Scheduler::operator()(int num_micro_batches) const {
  if (file_.num_micro_batches == num_micro_batches && num_micro_batches > 0) return file_;
  if (by_name_)
    return make_schedule(name_,
                         {.num_ranks = num_workers_, .num_micro_batches = num_micro_batches, .edges = edges_, .costs = costs_.get()});
  // Also for the last batch of an epoch, which may have fewer micro-batches than a user's table.
  return make_graph_schedule(edges_, ranks_of_stage_, num_micro_batches, name_.starts_with("zb"), costs_.get());
}

bool Scheduler::lies_as_named() const {
  if (num_stages_of(name_, num_workers_) != static_cast<int>(ranks_of_stage_.size())) return false;
  const auto probe = ranks_of_stages(make_schedule(name_, {.num_ranks = num_workers_, .num_micro_batches = 1, .edges = edges_}));
  for (size_t stage = 0; stage < probe.size(); ++stage)
    if (ranks_of_stage_[stage] != std::vector<int>{probe[stage][0]}) return false;
  return true;
}

Schedule schedule_of(const Layout& layout, const StageGraph& graph, const std::vector<int>& worker_of_stage, const StageSeconds& seconds,
                     int num_micro_batches) {
  std::vector<std::vector<int>> ranks_of_worker, ranks_of_stage;
  int next = 0;
  for (const int degree : layout.data_degrees()) {
    ranks_of_worker.emplace_back();
    for (int replica = 0; replica < (layout.is_even() ? 1 : degree); ++replica) ranks_of_worker.back().push_back(next++);
  }
  for (const int worker : worker_of_stage) ranks_of_stage.push_back(ranks_of_worker.at(static_cast<size_t>(worker)));
  Schedule schedule = Scheduler(layout, graph.stage_edges(), std::move(ranks_of_stage), seconds)(num_micro_batches);
  schedule.edges = graph.stage_edges();
  return schedule;
}

}  // namespace cohort
