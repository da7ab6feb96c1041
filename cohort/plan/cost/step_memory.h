#pragma once
// Bytes of one rank of a plan. Torch-free. Internal to this folder; formulas in step_memory.cpp.

#include <cstdint>

#include "cohort/plan/cost/step_forecast.h"
#include "cohort/plan/cost/strategy_memory.h"

namespace cohort {

struct RankMemoryShape {
  StrategyShape strategy;              ///< largest_unit_bytes as found; num_ranks of the data axis.
  int64_t buffer_bytes = 0;            ///< Running statistics.
  bool is_half = false;                ///< A copy of the weights in half precision while a step runs.
  bool adds_gradients = false;         ///< Several backwards a step: a gradient is made beside the sum that it is added to.
  int64_t largest_layer_bytes = 0;     ///< Of weights that train,
  int64_t distinct_layer_bytes = 0;    ///< and one layer of each size.
  bool counts_one_copy_whole = false;  ///< The limit is one that rank 0 holds all of the shared weights against.
  int64_t whole_model_bytes = 0;       ///< Where each rank builds the model before it keeps its part; 0: it does not.
  int num_groups = 0;  ///< Of ranks that exchange through pages of their own: data, pipeline, tensor; 0 of plans for elsewhere.
  int64_t stash = 0, recompute = 0, working = 0;  ///< Of the schedule: stage_stash.h.
  int64_t evaluation_bytes = 0;                   ///< Of a chunk, beside what stays: end_memory.h.
  int64_t text_sample_bytes = 0;                  ///< At the end: a whole model where this rank has a part, and a sample; 0: none.
  bool has_part = false;                          ///< Of the model: pp or tp.
};

/// All of StepMemory but `overhead`.
StepMemory rank_memory(const RankMemoryShape& shape);

}  // namespace cohort
