#pragma once
// The generators of schedules and what they share. Internal to this room.

#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

constexpr int kMaxScheduleSize = 4096;             ///< Ranks, stages, micro-batches.
constexpr int64_t kMaxScheduleActions = 16 << 20;  ///< On all ranks together.

/// A schedule without actions; edges form a chain unless the shape has some. Error(kBadInput) for invalid sizes and edges.
Schedule empty_schedule(const PipelineShape& shape, int num_stages);
/// Error(kBadInput) unless edges are sorted, distinct, 0 <= from < to < num_stages, and few enough.
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

// List scheduling: simulates the pipeline, and every free rank takes the best ready action. Internal to this room.

struct ListRules {
  std::vector<std::vector<int>> ranks_of_stage;  ///< Micro-batch k of stage s runs on ranks_of_stage[s][k mod size].
  bool split_backward = false;
  /// Limit, at least 1, of a stage's micro-batches per rank whose forward is done and whose input gradients are not.
  std::vector<int> stage_limit;
  /// Limit of (stage, micro-batch) pairs that a rank stashes until the weight part is done: a forward of stage s starts while fewer, less
  /// reserve[s], are stashed. Any stash within the limits should leave a next action; each rule explains why, and for which graphs.
  std::vector<int> rank_limit;
  std::vector<int> reserve;  ///< One per stage.
  /// The fraction of a weight part's time by which it may delay known work: 1 fills every gap, 0 delays nothing.
  double delay = 1;
  /// If set, every rank keeps this schedule's order of forwards and input gradients, and only weight parts move. stage_limit and reserve
  /// then do not apply; the order must respect rank_limit.
  const Schedule* order = nullptr;
  bool forward_first = false;  ///< Prefers forwards, within the limits, to input gradients.
};

/// Fills the actions of `schedule`, which has sizes and edges. A rank prefers input gradients of the oldest micro-batch, then the forward
/// of the oldest (or vice versa), then the oldest weight part. Forwards and backwards of one stage on one rank are in the order of
/// micro-batches. O(actions x stages of a rank x edges of a stage). Error(kBadInput) for invalid costs. Returns the makespan; infinite,
/// with actions missing, where the limits block.
double list_schedule(Schedule& schedule, const ListRules& rules, const StageCosts& costs);

/// The fastest of `schedule` itself (where it has actions) and the results of each of `rules` with several values of `delay` and
/// `forward_first`. The first of equals.
Schedule fastest_schedule(const Schedule& schedule, const std::vector<ListRules>& rules, const StageCosts& costs);

/// Time of a transfer between stages on different ranks. Error(kBadInput) unless finite and at least 0. (In simulate.cpp.)
double transfer_time(const StageCosts& costs, int from, int to);

/// 1 for each part of each stage, without transfer times.
StageCosts equal_costs(int num_stages);

}  // namespace cohort
