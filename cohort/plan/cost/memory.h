#pragma once
// Memory of a rank in bytes: weights, gradients and optimizer state under its strategy, the stash of a stage, evaluation and text sample,
// and the peak of all. Torch-free; formulas in memory.cpp.

#include <cstdint>
#include <vector>

#include "cohort/plan/profile/profile.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

struct StepMemory;  // step_forecast.h

// Bytes of weights, gradients and optimizer state of a rank under each data-parallel strategy, for the strategies of parallel/ and for the
// planner.

struct StrategyShape {
  int zero = 0;           ///< ZeRO stage.
  bool one_copy = false;  ///< Ranks of the host share weights and optimizer (zero 0).
  int num_ranks = 1;      ///< Ranks of the data axis.
  int optimizer_arrays = 0;
  int64_t trained_bytes = 0, frozen_bytes = 0;
  int64_t trained_part_bytes = 0, frozen_part_bytes = 0;  ///< Divided bytes of a rank; 0: without padding.
  int64_t largest_unit_bytes = 0;                         ///< ZeRO 2 and 3: the parameters that are exchanged together.
  int64_t live_bytes = 0;                                 ///< ZeRO 3: the most gathered weights at once; 0: two units.
  bool holds_gradients = false;                           ///< Whole gradients until all backwards are done: pipelines, accumulation.
  bool has_buckets = false;                               ///< Gradients are exchanged in buckets, a copy of them.
};

struct StateBytes {
  int64_t weights = 0, gradients = 0, optimizer = 0, buckets = 0;
};

///   whole copies   n, n, s n; buckets n where gradients are exchanged
///   one copy       n / p, n, s n / p
///   ZeRO 1         n, n, s n / p; buckets n
///   ZeRO 2         n, n / p, s n / p; 2 u
///   ZeRO 3         n / p + live, n / p, s n / p; 4 u
/// 2 u at most n, with n trained bytes (frozen ones are divided under one copy and ZeRO 3), p ranks, s arrays, u the largest unit. Parts
/// are rounded up.
StateBytes strategy_memory(const StrategyShape& shape);

// Activations that a stage keeps for backward.

struct StageStash {
  int64_t micro_batch_bytes = 0;  ///< Per micro-batch after its forward: what the stage received, and what its layers keep.
  int64_t working_bytes = 0;      ///< Peak besides the stash: temporaries of a layer, less the stash of later layers.
  int64_t recompute_bytes = 0;    ///< The largest stash of a recomputed layer, held while it runs again.
};

/// The stash of each stage. A recomputed layer keeps only its inputs, and its output where another layer needs it, as in choose_recompute()
/// (plan/cut/), but for stages of any layers. `recompute`: one flag per layer, or empty. `stage_of` and edges of `graph` are the profile's.
std::vector<StageStash> stash_of_stages(const Profile& profile, const StageGraph& graph, const std::vector<bool>& recompute);

/// Peak stash on the ranks of each worker, in the order of their actions. `stash`, `worker_of_stage`: one per stage.
std::vector<int64_t> peak_stash_bytes(const Schedule& schedule, const std::vector<StageStash>& stash,
                                      const std::vector<int>& worker_of_stage);

// Memory of a run besides its steps: evaluation, and a text sample at the end.

/// Samples of a chunk of the evaluation: the global batch over accumulate, 8 to 250; the same for every number of workers, so that they sum
/// the same numbers. Under a memory limit at most a micro-batch, so that it fits where a step did.
int64_t evaluation_samples(int64_t global_batch, int64_t accumulate, int64_t micro_batch, bool has_limit);

/// Peak bytes of a forward without a backward of these layers (ascending).
int64_t forward_only_bytes(const Profile& profile, const std::vector<int>& layers);

/// forward_only_bytes() with the loss of an evaluation. `tp` ranks gather their parts of the scores.
int64_t evaluation_bytes(const Profile& profile, const std::vector<int>& layers, int tp);

// Memory of a rank.

struct RankMemoryShape {
  StrategyShape strategy;              ///< largest_unit_bytes as found; num_ranks of the data axis.
  int64_t buffer_bytes = 0;            ///< Running statistics.
  bool is_half = false;                ///< A copy of the weights in half precision while a step runs.
  bool adds_gradients = false;         ///< Several backwards per step: a gradient exists besides the sum that it is added to.
  int64_t largest_layer_bytes = 0;     ///< Trained weights of the largest layer.
  int64_t distinct_layer_bytes = 0;    ///< Sum over the distinct sizes of layers.
  bool counts_one_copy_whole = false;  ///< The limit is one that rank 0 holds all of the shared weights against.
  int64_t whole_model_bytes = 0;       ///< Where each rank builds the model before it keeps its part; 0: it does not.
  int num_groups = 0;                  ///< Groups that exchange through shared pages: data, pipeline, tensor; 0 for other clusters.
  int64_t stash = 0, recompute = 0, working = 0;  ///< From StageStash, under the schedule.
  int64_t evaluation_bytes = 0;                   ///< evaluation_bytes() of a chunk.
  int64_t text_sample_bytes = 0;                  ///< At the end: a whole model where this rank has a part, and a sample; 0: none.
  bool has_part = false;                          ///< The rank has a part of the model: pp or tp.
};

/// Fills StepMemory except `overhead`.
StepMemory rank_memory(const RankMemoryShape& shape);

}  // namespace cohort
