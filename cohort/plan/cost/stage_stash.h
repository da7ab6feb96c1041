#pragma once
// Activations that a stage keeps for backward. Torch-free.

#include <cstdint>
#include <vector>

#include "cohort/plan/profile/profile.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

struct StageStash {
  int64_t micro_batch_bytes = 0;  ///< Of one micro-batch whose forward is done: what the stage received, and what its layers keep.
  int64_t working_bytes = 0;      ///< Beside all of its stash, at most: what a layer works with, less the stash of the layers behind it.
  int64_t again_bytes = 0;        ///< The largest stash of a recomputed layer, which is there while that one runs again.
};

/// One a stage. A recomputed layer keeps nothing but its inputs, and its output where another layer needs it: the same account as
/// choose_recompute()'s (plan/recompute/), for stages of any layers. `recompute`: one flag a layer, or empty. `stage_of` and edges of
/// `graph` are the profile's.
std::vector<StageStash> stash_of_stages(const Profile& profile, const StageGraph& graph, const std::vector<bool>& recompute);

/// Most of it at once on the ranks of each worker, in the order of their actions. `stash`, `worker_of_stage`: one a stage.
std::vector<int64_t> peak_stash_bytes(const Schedule& schedule, const std::vector<StageStash>& stash,
                                      const std::vector<int>& worker_of_stage);

}  // namespace cohort
