// Schedules of a chain of stages with whole backwards: GPipe, 1F1B, interleaved 1F1B and breadth-first. p ranks, m micro-batches, V stages
// per rank; bubbles are for equal times.
#include <algorithm>

#include "cohort/schedule/generators.h"

namespace cohort {

// GPipe: all forwards, then all backwards (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
// NeurIPS 2019, section 2.3).
//
//   order     rank i runs stage i: F0 ... F(m-1), then B0 ... B(m-1). The paper runs the backwards from the last micro-batch to the first;
//             with equal times both take as long, and this order frees activations of all ranks in the order in which they came
//   bubble    (p - 1) / (m + p - 1)
//   stash     m micro-batches on every rank
//   messages  2 m (p - 1)

Schedule make_gpipe(const PipelineShape& shape) {
  Schedule schedule = empty_schedule(shape, shape.num_ranks);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    for (int k = 0; k < shape.num_micro_batches; ++k) schedule.actions[rank].push_back(forward(rank, k));
    for (int k = 0; k < shape.num_micro_batches; ++k) schedule.actions[rank].push_back(backward(rank, k));
  }
  return schedule;
}

// 1F1B: one forward, one backward in turn (PipeDream-Flush: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
// section 2; DAPPLE: Fan et al., PPoPP 2021, section 3).
//
//   order     rank i runs stage i: p-1-i forwards to fill the pipeline, then a forward and a backward in turn, then the backwards left
//   bubble    (p - 1) / (m + p - 1), as GPipe
//   stash     min(m, p - i) micro-batches on rank i, however many there are in a batch
//   messages  2 m (p - 1)

Schedule make_one_f_one_b(const PipelineShape& shape) {
  const int p = shape.num_ranks, m = shape.num_micro_batches;
  Schedule schedule = empty_schedule(shape, p);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& actions = schedule.actions[rank];
    int next = 0;
    while (next < std::min(m, p - 1 - rank)) actions.push_back(forward(rank, next++));
    for (int k = 0; k < m; ++k) {
      if (next < m) actions.push_back(forward(rank, next++));
      actions.push_back(backward(rank, k));
    }
  }
  return schedule;
}

// Interleaved 1F1B: each rank runs V stages (chunks), so the pipeline fills V times as fast (Narayanan et al., "Efficient Large-Scale
// Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.2).
//
//   order     stage c p + i is chunk c of rank i. Micro-batches go in groups: a group passes chunk 0, then chunk 1, and so on; backwards
//             in the same groups with the chunks in reverse. A rank starts with 2 (p-1-i) + (V-1) g forwards, g being the size of the first
//             group, then goes on with a forward and a backward in turn, then does the backwards left
//   bubble    (p - 1) / (m V + p - 1) for m >= p
//   stash     at most p (V + 1) - 1 stages on rank 0, so p + (p - 1) / V of its shares, for m a multiple of p
//   messages  2 m (p V - 1)
//
// Differs from the paper in that m need not be a multiple of p: the groups are floor(m / p) of nearly equal sizes from p to 2p - 1, larger
// ones first. A group smaller than p would leave ranks idle each time that it goes from the last rank to the first; a group larger than the
// first would need more forwards ahead than the start gives. With m < p there is one group of m.

namespace {

struct Step {
  int chunk, micro_batch;
};

/// The order in which every rank runs its forwards; that of backwards has the chunks reversed.
std::vector<Step> steps(const std::vector<int>& group_sizes, int chunks) {
  std::vector<Step> out;
  int first = 0;
  for (const int size : group_sizes) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int k = first; k < first + size; ++k) out.push_back({chunk, k});
    first += size;
  }
  return out;
}

std::vector<int> group_sizes(int ranks, int num_micro_batches) {
  const int groups = std::max(1, num_micro_batches / ranks);
  std::vector<int> sizes(groups, num_micro_batches / groups);
  for (int i = 0; i < num_micro_batches % groups; ++i) ++sizes[i];
  return sizes;
}

}  // namespace

Schedule make_interleaved(const PipelineShape& shape) {
  const int p = shape.num_ranks, chunks = shape.chunks;
  if (chunks == 1) return make_one_f_one_b(shape);  // The start above is for chunks in turn: with one, half of it does.
  Schedule schedule = empty_schedule(shape, p * chunks);
  const std::vector<int> sizes = group_sizes(p, shape.num_micro_batches);
  const std::vector<Step> order = steps(sizes, chunks);
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& actions = schedule.actions[rank];
    const size_t ahead = std::min(order.size(), static_cast<size_t>(2 * (p - 1 - rank) + (chunks - 1) * sizes.front()));
    size_t next = 0;
    const auto add_forward = [&] {
      actions.push_back(forward(order[next].chunk * p + rank, order[next].micro_batch));
      ++next;
    };
    while (next < ahead) add_forward();
    for (const Step& step : order) {
      if (next < order.size()) add_forward();
      actions.push_back(backward((chunks - 1 - step.chunk) * p + rank, step.micro_batch));
    }
  }
  return schedule;
}

// Breadth-first looped pipeline: as interleaved, each rank runs V stages, but all micro-batches pass one stage before the next (Lamy-
// Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, arXiv 2211.05953, section 4).
//
//   order     stage c p + i is chunk c of rank i: all forwards of chunk 0, of chunk 1, ...; then all backwards of the last chunk, of the
//             one before, ...
//   bubble    (p - 1) / (m V + p - 1) for m >= p
//   stash     m micro-batches of every stage: the most of all, for two gains that others do not have. A rank is done with a stage's weights
//             after one stretch, so with ZeRO-3 they are gathered twice a step only; and the gradients of a stage are complete early, so
//             their exchange hides behind the stages before it
//   messages  2 m (p V - 1)

Schedule make_breadth_first(const PipelineShape& shape) {
  const int p = shape.num_ranks, m = shape.num_micro_batches;
  Schedule schedule = empty_schedule(shape, p * shape.chunks);
  for (int rank = 0; rank < p; ++rank) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int k = 0; k < m; ++k) schedule.actions[rank].push_back(forward(chunk * p + rank, k));
    for (int chunk = shape.chunks - 1; chunk >= 0; --chunk)
      for (int k = 0; k < m; ++k) schedule.actions[rank].push_back(backward(chunk * p + rank, k));
  }
  return schedule;
}

}  // namespace cohort
