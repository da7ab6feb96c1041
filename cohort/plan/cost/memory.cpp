// Peak memory of a rank (rank_memory()). strategy_memory() gives the persistent part; besides it:
//
//   one copy       the weights count for rank 0 under a limit (--memory-limit); otherwise the ranks of the host share them
//   buckets        gradients are in buckets of the data axis, even with one rank; one copy has none
//   adding         the gradient of a further backward before it is added: that of the largest layer; with one copy a buffer for each size
//                  of a parameter
//   ZeRO 2         as many units of gradients wait as are in flight
//   ZeRO 3         the larger of two peaks: the end of forward with stash and gathered units, and the end of the first backward without
//                  stash, when units of gradients wait, are in flight and are gathered
//   start          the whole model exists before a rank drops other ranks' parts: in a pipeline while its layers are measured, with
//                  replicas while rank 0 sends its weights. Only where `whole_model_bytes` is set
//   evaluation     a forward of a chunk, without stash
//   text sample    at the end, with text: rank 0 of a run with pp or tp holds a whole model besides its part and optimizer state; under
//                  ZeRO 3 every rank gathers all weights
//   pages          a constant for each group that exchanges through shared pages; in `buffers`
//
// bench/ladder.py compares it with trainings. Not modelled: messages queued between stages.
#include "cohort/plan/cost/memory.h"

#include <algorithm>
#include <set>

#include "cohort/plan/cost/step_forecast.h"

namespace cohort {
namespace {

constexpr int64_t kPagesOfGroup = 2'200'000;  // Measured with --memory-limit, for any model: bytes that tensors do not explain.

int64_t bytes_at_start(const RankMemoryShape& shape, const StateBytes& state) {
  const StrategyShape& strategy = shape.strategy;
  if (shape.whole_model_bytes == 0) return 0;
  if (strategy.holds_gradients) return shape.whole_model_bytes + 2 * shape.largest_layer_bytes + shape.working;
  if (strategy.zero == 3) return shape.whole_model_bytes + state.weights;
  if (strategy.num_ranks > 1) return 2 * (strategy.trained_bytes + strategy.frozen_bytes);
  return shape.whole_model_bytes;
}

/// `memory` is that of a step.
int64_t bytes_after_steps(const RankMemoryShape& shape, const StepMemory& memory) {
  const StrategyShape& strategy = shape.strategy;
  int64_t held = memory.weights + memory.gradients + memory.optimizer + memory.buffers;
  if (strategy.zero < 2) held += memory.buckets;
  int64_t text = shape.text_sample_bytes;
  if (text > 0 && strategy.zero == 3 && strategy.num_ranks > 1 && !shape.has_part)  // Gathered units are counted already.
    text += strategy.trained_bytes - std::min(2 * strategy.largest_unit_bytes, strategy.trained_bytes);
  return held + std::max(shape.evaluation_bytes, text);
}

}  // namespace

StepMemory rank_memory(const RankMemoryShape& shape) {
  StrategyShape strategy = shape.strategy;
  strategy.has_buckets = !strategy.one_copy;
  const StateBytes state = strategy_memory(strategy);
  StepMemory out{.weights = state.weights, .gradients = state.gradients, .optimizer = state.optimizer, .buffers = shape.buffer_bytes};
  if (strategy.one_copy && shape.counts_one_copy_whole) out.weights = strategy.trained_bytes + strategy.frozen_bytes;
  if (shape.is_half) out.weights += (strategy.trained_bytes + strategy.frozen_bytes) / 2;
  out.buckets = state.buckets;
  out.stash = shape.stash, out.recompute = shape.recompute, out.working = shape.working;
  if (shape.adds_gradients) out.working += strategy.one_copy ? shape.distinct_layer_bytes : shape.largest_layer_bytes;
  const int64_t in_flight = std::min(2 * strategy.largest_unit_bytes, strategy.trained_bytes);
  if (strategy.zero == 2) out.working += in_flight;
  if (strategy.zero == 3) {
    out.buckets = in_flight;
    const int64_t at_end = 3 * in_flight;  // Gathered, in flight and waiting.
    out.working = std::max(out.working, at_end - out.buckets - out.stash - out.recompute);
  }
  out.working += std::max<int64_t>(0, std::max(bytes_at_start(shape, state), bytes_after_steps(shape, out)) - out.total());
  out.buffers += shape.num_groups * kPagesOfGroup;
  return out;
}

StateBytes strategy_memory(const StrategyShape& shape) {
  const int64_t ranks = std::max(1, shape.num_ranks), trained = shape.trained_bytes, frozen = shape.frozen_bytes;
  const auto part = [&](int64_t bytes, int64_t padded) { return padded > 0 ? padded : (bytes + ranks - 1) / ranks; };
  const int64_t trained_part = part(trained, shape.trained_part_bytes), frozen_part = part(frozen, shape.frozen_part_bytes);
  StateBytes state{trained + frozen, trained, shape.optimizer_arrays * trained, 0};
  if (shape.zero > 0 || shape.one_copy) state.optimizer = shape.optimizer_arrays * trained_part;
  if (shape.one_copy) {
    state.weights = trained_part + frozen_part;
  } else if (shape.zero < 2) {
    state.buckets = shape.has_buckets ? trained : 0;
  } else {
    const int64_t in_flight = std::min(2 * shape.largest_unit_bytes, trained);
    if (!shape.holds_gradients) state.gradients = trained_part;
    state.buckets = (shape.zero == 2 ? 1 : 2) * in_flight;
    if (shape.zero == 3) state.weights = trained_part + frozen_part + (shape.live_bytes > 0 ? shape.live_bytes : in_flight);
  }
  return state;
}

namespace {

/// Backward frees the stash of later layers first. With recompute nothing is counted as freed.
void add_working_bytes(const Profile& profile, const StageGraph& graph, bool recomputes, std::vector<StageStash>& stash) {
  // Gradients of outputs to which a reader has yet to add its part.
  std::vector<int64_t> waiting(profile.layers.size() + 1, 0);
  const std::vector<int> last_reader = last_readers(profile.edges, profile.layers.size());
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
    if (cost.working_bytes == 0) continue;  // Unknown.
    stash[stage].working_bytes = std::max(stash[stage].working_bytes, cost.working_bytes + waiting[layer] - behind[stage]);
    if (!recomputes) behind[stage] += cost.stash_bytes;
  }
}

}  // namespace

std::vector<StageStash> stash_of_stages(const Profile& profile, const StageGraph& graph, const std::vector<bool>& recompute) {
  std::vector<StageStash> stash(static_cast<size_t>(graph.num_stages()));
  const auto is_recomputed = [&](int layer) { return !recompute.empty() && recompute[static_cast<size_t>(layer)]; };
  std::set<std::pair<int, int>> received;  // (stage, layer): each value is received once.
  for (const StageEdge& edge : graph.edges)
    for (const int value : edge.values) received.emplace(edge.to, value);
  for (const auto& [stage, layer] : received)
    stash[static_cast<size_t>(stage)].micro_batch_bytes += profile.layers[static_cast<size_t>(layer)].output_bytes;
  // Outputs that a recomputed layer of the same stage reads again.
  std::vector<bool> is_needed(profile.layers.size(), false);
  for (const auto& [from, to] : profile.edges)
    if (from >= 0 && is_recomputed(to) && graph.stage_of[static_cast<size_t>(from)] == graph.stage_of[static_cast<size_t>(to)])
      is_needed[static_cast<size_t>(from)] = true;
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    const LayerProfile& cost = profile.layers[layer];
    StageStash& its = stash[static_cast<size_t>(graph.stage_of[layer])];
    const bool again = is_recomputed(static_cast<int>(layer));
    const int64_t freed = cost.freed_bytes();
    its.micro_batch_bytes += again ? cost.stash_bytes - freed : cost.stash_bytes;
    if (again) its.recompute_bytes = std::max(its.recompute_bytes, freed);
    if (!cost.keeps_output(again) && is_needed[layer]) its.micro_batch_bytes += cost.output_bytes;
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

// A forward without a backward keeps an output until the last layer that reads it has run:
//
//   forward      at layer i: outputs that i or a later layer reads, its own output, and scratch of the same size (a softmax or a sum)
//   evaluation   the scores, which ranks of a tensor axis gather, and their log-softmax
//
// Cost: O(layers + edges). It follows models/graph/layer_graph.cpp, which frees outputs, and train/model/evaluate.cpp, which computes the
// loss.

int64_t evaluation_samples(int64_t global_batch, int64_t accumulate, int64_t micro_batch, bool has_limit) {
  constexpr int64_t kLeast = 8, kMost = 250;
  const int64_t usual = std::clamp<int64_t>(global_batch / std::max<int64_t>(1, accumulate), kLeast, kMost);
  return has_limit ? std::clamp<int64_t>(micro_batch, 1, usual) : usual;
}

int64_t forward_only_bytes(const Profile& profile, const std::vector<int>& layers) {
  const std::vector<int> last_reader = last_readers(profile.edges, profile.layers.size());
  int64_t most = 0, alive = 0;
  std::vector<std::pair<int, int64_t>> held;  // (last reader, bytes)
  for (const int layer : layers) {
    const int64_t output = profile.layers[static_cast<size_t>(layer)].output_bytes;
    most = std::max(most, alive + 2 * output);
    held.emplace_back(last_reader[static_cast<size_t>(layer)], output);
    alive += output;
    std::erase_if(held, [&](const auto& one) {
      if (one.first > layer || one.first < 0) return false;  // An output without readers is the result.
      alive -= one.second;
      return true;
    });
  }
  return most;
}

int64_t evaluation_bytes(const Profile& profile, const std::vector<int>& layers, int tp) {
  int64_t loss = 0;
  if (!layers.empty() && layers.back() + 1 == static_cast<int>(profile.layers.size()))
    loss = (tp > 1 ? 3 : 2) * profile.layers.back().output_bytes * (tp > 1 ? tp : 1);
  return std::max(forward_only_bytes(profile, layers), loss);
}

}  // namespace cohort
