#pragma once
// The generators of schedules and what they share. Internal to this room.

#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"

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

// List scheduling: runs the pipeline in thought and lets every rank take, whenever it is free, the best action that is ready. Internal to
// this room.

struct ListRules {
  std::vector<std::vector<int>> ranks_of_stage;  ///< Micro-batch k of stage s is done by ranks_of_stage[s][k mod size].
  bool split_backward = false;
  /// On one rank, micro-batches of the stage whose forward is done and whose input gradients are not: at most this many, at least 1.
  std::vector<int> stage_limit;
  /// Stages x micro-batches that a rank keeps (until the weight part is done): a forward of stage s starts while this many, less
  /// reserve[s], are not reached. There should be a way on with any stash that the limits allow; each rule that uses this says why, and for
  /// which graphs.
  std::vector<int> rank_limit;
  std::vector<int> reserve;  ///< One a stage.
  /// A weight part may delay what is known to be ready soon by this share of the part's time: 1 fills every gap, 0 delays nothing.
  double delay = 1;
  /// Where given, every rank does forwards and input gradients in the order of this schedule, and only the weight parts find new places.
  /// stage_limit and reserve do not count then; the order must keep to rank_limit.
  const Schedule* order = nullptr;
  bool forward_first = false;  ///< Prefers forwards, within the limits, to input gradients.
};

/// Fills the actions of `schedule`, which has sizes and edges. A rank prefers input gradients of the oldest micro-batch, then the forward
/// of the oldest (or these two the other way round), then the oldest weight part. Forwards and backwards of one stage on one rank come in
/// the order of the micro-batches. O(actions x stages of a rank x edges of a stage). Error(kBadInput) for costs that do not fit. Returns
/// when the last action ends; infinite, with actions missing, where the limits left no way on.
double list_schedule(Schedule& schedule, const ListRules& rules, const StageCosts& costs);

/// The fastest of `schedule` as it is (where it has actions) and what each of `rules` makes of it with several
/// values of `delay` and `forward_first`; what gets stuck does not count. The first of equals.
Schedule fastest_schedule(const Schedule& schedule, const std::vector<ListRules>& rules, const StageCosts& costs);

/// From stage to stage of different ranks. Error(kBadInput) where `costs` gives no finite time of at least 0. (In simulate.cpp.)
double transfer_time(const StageCosts& costs, int from, int to);

/// 1 for each part of each stage, transfers free.
StageCosts equal_costs(int num_stages);

}  // namespace cohort
