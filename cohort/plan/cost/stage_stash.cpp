#include "cohort/plan/cost/stage_stash.h"

#include <algorithm>
#include <set>

namespace cohort {
namespace {

/// Backward frees the stash of the last layers before it comes to the first. Where layers recompute nothing is counted as freed.
void add_working_bytes(const Profile& profile, const StageGraph& graph, bool recomputes, std::vector<StageStash>& stash) {
  // Gradients of outputs that a later layer has begun and a reader in front of it has not added to yet.
  std::vector<int64_t> waiting(profile.layers.size() + 1, 0);
  std::vector<int> last_reader(profile.layers.size(), -1);
  for (const auto& [from, to] : profile.edges)
    if (from >= 0) last_reader[static_cast<size_t>(from)] = std::max(last_reader[static_cast<size_t>(from)], to);
  for (size_t from = 0; from < profile.layers.size(); ++from)
    if (last_reader[from] > static_cast<int>(from) + 1) {
      waiting[from + 1] += profile.layers[from].output_bytes;
      waiting[static_cast<size_t>(last_reader[from])] -= profile.layers[from].output_bytes;
    }
  for (size_t layer = 1; layer < waiting.size(); ++layer) waiting[layer] += waiting[layer - 1];
  std::vector<int64_t> behind(stash.size(), 0);
  for (size_t layer = profile.layers.size(); layer-- > 0;) {
    const auto stage = static_cast<size_t>(graph.stage_of[layer]);
    const LayerProfile& cost = profile.layers[layer];
    if (cost.working_bytes == 0) continue;  // Not known.
    stash[stage].working_bytes = std::max(stash[stage].working_bytes, cost.working_bytes + waiting[layer] - behind[stage]);
    if (!recomputes) behind[stage] += cost.stash_bytes;
  }
}

}  // namespace

std::vector<StageStash> stash_of_stages(const Profile& profile, const StageGraph& graph, const std::vector<bool>& recompute) {
  std::vector<StageStash> stash(static_cast<size_t>(graph.num_stages()));
  const auto is_recomputed = [&](int layer) { return !recompute.empty() && recompute[static_cast<size_t>(layer)]; };
  std::set<std::pair<int, int>> received;  // (stage, layer): a value comes once, however many edges ask for it.
  for (const StageEdge& edge : graph.edges)
    for (const int value : edge.values) received.emplace(edge.to, value);
  for (const auto& [stage, layer] : received)
    stash[static_cast<size_t>(stage)].micro_batch_bytes += profile.layers[static_cast<size_t>(layer)].output_bytes;
  // Whether a recomputed layer of the same stage reads it: then it must be there again.
  std::vector<bool> is_needed(profile.layers.size(), false);
  for (const auto& [from, to] : profile.edges)
    if (from >= 0 && is_recomputed(to) && graph.stage_of[static_cast<size_t>(from)] == graph.stage_of[static_cast<size_t>(to)])
      is_needed[static_cast<size_t>(from)] = true;
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    const LayerProfile& cost = profile.layers[layer];
    StageStash& its = stash[static_cast<size_t>(graph.stage_of[layer])];
    const bool again = is_recomputed(static_cast<int>(layer));
    const int64_t freed =
        cost.stash_bytes - (cost.output_kept == OutputKept::kByReaders ? std::min(cost.stash_bytes, cost.output_bytes) : 0);
    its.micro_batch_bytes += again ? cost.stash_bytes - freed : cost.stash_bytes;
    if (again) its.again_bytes = std::max(its.again_bytes, freed);
    const bool is_kept = cost.output_kept == OutputKept::kByReaders || (cost.output_kept == OutputKept::kByItself && !again);
    if (!is_kept && is_needed[layer]) its.micro_batch_bytes += cost.output_bytes;
  }
  const bool recomputes = std::find(recompute.begin(), recompute.end(), true) != recompute.end();
  add_working_bytes(profile, graph, recomputes, stash);
  return stash;
}

std::vector<int64_t> peak_stash_bytes(const Schedule& schedule, const std::vector<StageStash>& stash,
                                      const std::vector<int>& worker_of_stage) {
  std::vector<int64_t> peaks(static_cast<size_t>(1 + *std::max_element(worker_of_stage.begin(), worker_of_stage.end())), 0);
  for (const std::vector<Action>& actions : schedule.actions) {
    int64_t bytes = 0;
    for (const Action& action : actions) {
      const int64_t one = stash[static_cast<size_t>(action.stage)].micro_batch_bytes;
      int64_t& peak = peaks[static_cast<size_t>(worker_of_stage[static_cast<size_t>(action.stage)])];
      if (action.kind == ActionKind::kForward) peak = std::max(peak, bytes += one);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) bytes -= one;
    }
  }
  return peaks;
}

}  // namespace cohort
