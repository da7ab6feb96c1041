// ZB-H1: 1F1B whose backward is split in the gradients of the inputs (I), which the rank before waits for, and of the weights (W), for
// which nobody waits and which fill the gaps (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 2.3).
//
//   order     rank i runs stage i: p-1-i forwards, then F, I, W in turn, W being i micro-batches behind I; what is left of W at the end
//   bubble    with equal times of F, I, W: (p - 1) / (3 m + p - 1), a third of the idle time of 1F1B. In general the idle time of a rank
//             is (p - 1) (F + I - W) where W is not longer than that
//   stash     min(m, p) micro-batches at most (inputs and gradients of outputs are kept until W is done): the peak of 1F1B's rank 0, now on
//             all ranks, because rank i is i weight parts late
//   messages  2 m (p - 1)
//
// Where costs are given, list schedules with the same stash and this order with other places for W are tried as well
// (generators.h) and the fastest is taken.
#include <algorithm>

#include "cohort/schedule/generators.h"

namespace cohort {
namespace {

Schedule faster(const Schedule& schedule, const StageCosts& costs) {
  const int p = schedule.num_ranks();
  ListRules rules = {.split_backward = true};
  rules.reserve.assign(p, 0);
  // Weight parts are always ready and one stage a rank takes its micro-batches in order, so any limit leaves a way on.
  rules.rank_limit.assign(p, p);
  for (int rank = 0; rank < p; ++rank) rules.ranks_of_stage.push_back({rank}), rules.stage_limit.push_back(p - rank);
  ListRules eager = rules;
  eager.stage_limit.assign(p, p);
  ListRules same_order = rules;
  same_order.order = &schedule;
  return fastest_schedule(schedule, {rules, eager, same_order}, costs);
}

}  // namespace

Schedule make_zero_bubble_h1(const PipelineShape& shape) {
  const int p = shape.num_ranks, m = shape.num_micro_batches;
  Schedule schedule = empty_schedule(shape, p);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& actions = schedule.actions[rank];
    int next = 0, weight = 0;
    while (next < std::min(m, p - 1 - rank)) actions.push_back(forward(rank, next++));
    for (int k = 0; k < m; ++k) {
      if (next < m) actions.push_back(forward(rank, next++));
      actions.push_back(backward_input(rank, k));
      if (k >= rank) actions.push_back(backward_weight(rank, weight++));
    }
    while (weight < m) actions.push_back(backward_weight(rank, weight++));
  }
  return shape.costs ? faster(schedule, *shape.costs) : schedule;
}

}  // namespace cohort
