#include "cohort/plan/cost/strategy_memory.h"

#include <algorithm>

namespace cohort {

StateBytes strategy_memory(const StrategyShape& shape) {
  const int64_t ranks = std::max(1, shape.num_ranks), trained = shape.trained_bytes;
  const auto part = [&](int64_t bytes) {
    return bytes == trained && shape.part_bytes > 0 ? shape.part_bytes : (bytes + ranks - 1) / ranks;
  };
  StateBytes state{trained + shape.frozen_bytes, trained, shape.optimizer_arrays * trained, 0};
  if (shape.zero > 0 || shape.one_copy) state.optimizer = shape.optimizer_arrays * part(trained);
  if (shape.one_copy) {
    state.weights = part(trained + shape.frozen_bytes);
  } else if (shape.zero < 2) {
    state.buckets = shape.has_buckets ? trained : 0;
  } else {
    const int64_t unit = std::min(shape.largest_unit_bytes, trained);
    if (!shape.holds_gradients) state.gradients = part(trained);
    state.buckets = (shape.zero == 2 ? 2 : 4) * unit;
    if (shape.zero == 3) state.weights = shape.frozen_bytes + part(trained) + (shape.live_bytes > 0 ? shape.live_bytes : 2 * unit);
  }
  return state;
}

}  // namespace cohort
