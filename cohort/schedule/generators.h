#pragma once
// What the generators share; one file each. Internal to this room.

#include "cohort/schedule/schedule.h"

namespace cohort {

constexpr int kMaxScheduleSize = 4096;             ///< Ranks, stages, micro-batches.
constexpr int64_t kMaxScheduleActions = 16 << 20;  ///< In all ranks together.

/// No actions yet; edges a chain where the shape names none. Error(kBadInput) for sizes out of bounds and edges that are none.
Schedule empty_schedule(const PipelineShape& shape, int num_stages);
/// Sorted, each once, 0 <= from < to < num_stages, few enough; else Error(kBadInput).
void check_edges(const std::vector<std::pair<int, int>>& edges, int num_stages, int num_micro_batches);

Schedule make_gpipe(const PipelineShape& shape);
Schedule make_one_f_one_b(const PipelineShape& shape);
Schedule make_interleaved(const PipelineShape& shape);
Schedule make_breadth_first(const PipelineShape& shape);
Schedule make_zero_bubble_h1(const PipelineShape& shape);
Schedule make_zero_bubble_v(const PipelineShape& shape);

inline Action forward(int stage, int micro_batch) { return {ActionKind::kForward, stage, micro_batch}; }
inline Action backward(int stage, int micro_batch) { return {ActionKind::kBackward, stage, micro_batch}; }
inline Action backward_input(int stage, int micro_batch) { return {ActionKind::kBackwardInput, stage, micro_batch}; }
inline Action backward_weight(int stage, int micro_batch) { return {ActionKind::kBackwardWeight, stage, micro_batch}; }

}  // namespace cohort
