#pragma once
// Bytes of weights, gradients and optimizer state that a rank holds under each way of spanning the data axis: what the strategies of
// parallel/ forecast of themselves, and the planner of models that are not here. Torch-free.

#include <cstdint>
#include <vector>

namespace cohort {

struct StrategyShape {
  int zero = 0;           ///< ZeRO stage.
  bool one_copy = false;  ///< Ranks of the host share weights and optimizer (zero 0).
  int num_ranks = 1;      ///< Of the data axis.
  int optimizer_arrays = 0;
  int64_t trained_bytes = 0, frozen_bytes = 0;
  int64_t trained_part_bytes = 0, frozen_part_bytes = 0;  ///< What a rank has of them where they are divided; 0: without padding.
  int64_t largest_unit_bytes = 0;                         ///< ZeRO 2 and 3: of the parameters that travel together.
  int64_t live_bytes = 0;                                 ///< ZeRO 3: most whole weights at once; 0: two units.
  bool holds_gradients = false;                           ///< Whole until all backwards are done: pipelines, and gradients that accumulate.
  bool has_buckets = false;                               ///< A copy of the gradients, in which they travel.
};

struct StateBytes {
  int64_t weights = 0, gradients = 0, optimizer = 0, buckets = 0;
};

///   whole copies   n, n, s n; buckets n where gradients travel
///   one copy       n / p, n, s n / p
///   ZeRO 1         n, n, s n / p; buckets n
///   ZeRO 2         n, n / p, s n / p; 2 u
///   ZeRO 3         n / p + live, n / p, s n / p; 4 u
/// 2 u at most n, with n trained bytes (frozen ones are divided under one copy and ZeRO 3), p ranks, s arrays, u the largest unit. Parts
/// are rounded up.
StateBytes strategy_memory(const StrategyShape& shape);

}  // namespace cohort
