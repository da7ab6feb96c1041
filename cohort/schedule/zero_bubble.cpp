// Zero-bubble schedules of a chain: the backward is split into input parts (I) and weight parts (W), and W fills the gaps. Two tables:
// ZB-H1 with one stage a rank and ZB-V with two. p ranks, m micro-batches.
//
// Where costs are given, list schedules with the same stash and the table's order with other places for W are tried as well
// (generators.h), and the fastest is taken.
#include <algorithm>

#include "cohort/schedule/generators.h"

namespace cohort {

// ZB-H1: 1F1B whose backward is split in the gradients of the inputs (I), which the rank before waits for, and of the weights (W), for
// which no rank waits and which fill the gaps (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 2.3).
//
//   order     rank i runs stage i: p-1-i forwards, then F, I, W in turn, W being i micro-batches behind I; what is left of W at the end
//   bubble    with equal times of F, I, W: (p - 1) / (3 m + p - 1), a third of the idle time of 1F1B. In general the idle time of a rank
//             is (p - 1) (F + I - W) where W is not longer than that
//   stash     min(m, p) micro-batches at most (inputs and gradients of outputs are kept until W is done): the peak of 1F1B's rank 0, now on
//             all ranks, because rank i is i weight parts late
//   messages  2 m (p - 1)

namespace {

Schedule faster_h1(const Schedule& schedule, const StageCosts& costs) {
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
  return shape.costs ? faster_h1(schedule, *shape.costs) : schedule;
}

// ZB-V: two stages a rank on a V: stage s runs on rank s on the way down and stage 2p-1-s on it on the way back, so that the last stage is
// on rank 0 beside the first and backwards begin there early (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241,
// section 6; "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, arXiv 2405.15362).
//
//   order     of rank i, in parts "a" (stage i) and "b" (stage 2p-1-i), each in the order of its micro-batches:
//               fill    2 (p - i) - 1 times Fa; i times Fb Fa; p - i times Fb Ib Wb
//               steady  Fa Ia Wa Fb Ib Wb until all forwards are done
//               drain   i times Ia Ib; p - i times Ia with a Wa; the weight parts left
//   bubble    with equal times of F, I, W: (p - 1) / (6 m + p - 1) for m >= 2p - 1, in units of one part of one stage: nobody idles but for
//             the p - 1 forwards in which the first micro-batch comes down the V. 1F1B idles 6 (p - 1)
//   stash     2p stages at most, which is p shares of a rank: 1F1B's peak on rank 0, here on all ranks
//   messages  2 m (2p - 2): the two stages at the foot of the V are on one rank
//
// With m < 2p - 1 that is the order for 2p - 1 without the micro-batches that do not exist, which leaves gaps; then, too, the fastest of
// several orders is taken.

namespace {

/// Writes one rank's order part by part. Micro-batches beyond `num_micro_batches` are counted but not written.
class Writer {
 public:
  Writer(std::vector<Action>& actions, int rank, int num_ranks, int num_micro_batches)
      : actions_(actions), stages_{rank, 2 * num_ranks - 1 - rank}, num_micro_batches_(num_micro_batches) {}

  void forward(int part) { add(ActionKind::kForward, part, forwards_[part]++); }
  void input(int part) { add(ActionKind::kBackwardInput, part, inputs_[part]++); }
  void weight(int part) { add(ActionKind::kBackwardWeight, part, weights_[part]++); }
  void both(int part) {
    input(part);
    weight(part);
  }
  int forwards(int part) const { return forwards_[part]; }
  bool owes_weight(int part) const { return weights_[part] < inputs_[part]; }

 private:
  void add(ActionKind kind, int part, int micro_batch) {
    if (micro_batch < num_micro_batches_) actions_.push_back({kind, stages_[part], micro_batch});
  }

  std::vector<Action>& actions_;
  int stages_[2];
  int num_micro_batches_;
  int forwards_[2] = {}, inputs_[2] = {}, weights_[2] = {};
};

void write_rank(Writer& writer, int rank, int p, int num_counted) {
  constexpr int kA = 0, kB = 1;
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) writer.forward(kA);
  for (int i = 0; i < rank; ++i) {
    writer.forward(kB);
    writer.forward(kA);
  }
  for (int i = 0; i < p - rank; ++i) {
    writer.forward(kB);
    writer.both(kB);
  }
  while (writer.forwards(kB) < num_counted) {
    if (writer.forwards(kA) < num_counted) writer.forward(kA);
    writer.both(kA);
    writer.forward(kB);
    writer.both(kB);
  }
  for (int i = 0; i < rank; ++i) {
    writer.input(kA);
    writer.input(kB);
  }
  for (int i = 0; i < p - rank; ++i) {
    writer.input(kA);
    writer.weight(kA);
  }
  for (const int part : {kB, kA})
    while (writer.owes_weight(part)) writer.weight(part);
}

Schedule faster_v(const Schedule& schedule, const StageCosts& costs) {
  const int p = schedule.num_ranks(), num_stages = schedule.num_stages;
  ListRules rules = {.split_backward = true};
  rules.rank_limit.assign(p, 2 * p);
  rules.stage_limit.assign(num_stages, schedule.num_micro_batches);
  // One place is left for stages on the way back. So the oldest micro-batch always advances: no later one is in flight on the way back, and
  // on the way down there is a place as soon as the weight parts, always ready, are done. That holds on a chain; where a stage on the way
  // back does not wait for one on the way down, it may take all places, and this rule drops out.
  rules.reserve.assign(num_stages, 0);
  for (int stage = 0; stage < num_stages; ++stage) {
    rules.ranks_of_stage.push_back({std::min(stage, num_stages - 1 - stage)});
    if (stage < p) rules.reserve[stage] = 1;
  }
  ListRules careful = rules;
  for (int stage = 0; stage < p; ++stage) careful.stage_limit[stage] = 2 * p - 1 - stage;
  ListRules same_order = rules;
  same_order.order = &schedule;
  return fastest_schedule(schedule, {rules, careful, same_order}, costs);
}

}  // namespace

Schedule make_zero_bubble_v(const PipelineShape& shape) {
  const int p = shape.num_ranks, m = shape.num_micro_batches;
  Schedule schedule = empty_schedule(shape, 2 * p);
  for (int rank = 0; rank < p; ++rank) {
    Writer writer(schedule.actions[rank], rank, p, m);
    write_rank(writer, rank, p, std::max(m, 2 * p - 1));
  }
  if (shape.costs) return faster_v(schedule, *shape.costs);
  return m < 2 * p - 1 ? faster_v(schedule, equal_costs(2 * p)) : schedule;
}

}  // namespace cohort
