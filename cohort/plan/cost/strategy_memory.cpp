#include "cohort/plan/cost/strategy_memory.h"

#include <algorithm>

namespace cohort {

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

}  // namespace cohort
