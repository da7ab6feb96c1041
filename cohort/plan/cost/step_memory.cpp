// What a rank holds, at the moment of a step when that is most. strategy_memory() says what stays; beside it:
//
//   one copy       the weights are rank 0's where a limit counts them (--memory-limit does); the memory of the host is shared by all
//   buckets        gradients lie in buckets of the data axis also where it has one rank; one copy has none
//   adding         the gradient that a further backward makes, before it is added: of the largest layer; with one copy its place is kept,
//                  one for each size of a parameter
//   ZeRO 2         gradients of as many units as travel wait for their turn
//   ZeRO 3         two moments: the end of forward with the stash and the units that are gathered, and the end of the first backward,
//                  when units of gradients wait, travel and are gathered, and the stash is gone
//   start          the whole model is there before a rank drops what is others': with a pipeline while its layers are measured, with
//                  replicas while rank 0's weights travel. Only where `whole_model_bytes` says that it is so
//
//   evaluation     a forward of a chunk, when the stash is gone
//   text sample    at the end, with data of text: rank 0 of a run with pp or tp has a whole model beside its part and its optimizer's
//   state;
//                  under ZeRO 3 every rank gathers all weights
//
//   pages          of each group through which ranks of this host exchange, a constant; in `buffers`
//
// Held against trainings by bench/ladder.py. Not modelled: what waits in channels between stages.

#include "cohort/plan/cost/step_memory.h"

#include <algorithm>

namespace cohort {
namespace {

constexpr int64_t kPagesOfGroup = 2'200'000;  // Measured with --memory-limit, of any model: what a rank holds less what tensors explain.

int64_t bytes_at_start(const RankMemoryShape& shape, const StateBytes& state) {
  const StrategyShape& strategy = shape.strategy;
  if (shape.whole_model_bytes == 0) return 0;
  if (strategy.holds_gradients) return shape.whole_model_bytes + 2 * shape.largest_layer_bytes + shape.working;
  if (strategy.zero == 3) return shape.whole_model_bytes + state.weights;
  if (strategy.num_ranks > 1) return 2 * (strategy.trained_bytes + strategy.frozen_bytes);
  return shape.whole_model_bytes;
}

/// `memory`: of a step.
int64_t bytes_after_steps(const RankMemoryShape& shape, const StepMemory& memory) {
  const StrategyShape& strategy = shape.strategy;
  int64_t held = memory.weights + memory.gradients + memory.optimizer + memory.buffers;
  if (strategy.zero < 2) held += memory.buckets;
  int64_t text = shape.text_sample_bytes;
  if (text > 0 && strategy.zero == 3 && strategy.num_ranks > 1 && !shape.has_part)  // Those that are gathered are among them.
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
    const int64_t at_end = 3 * in_flight;  // Gathered, travelling and waiting.
    out.working = std::max(out.working, at_end - out.buckets - out.stash - out.recompute);
  }
  out.working += std::max<int64_t>(0, std::max(bytes_at_start(shape, state), bytes_after_steps(shape, out)) - out.total());
  out.buffers += shape.num_groups * kPagesOfGroup;
  return out;
}

}  // namespace cohort
