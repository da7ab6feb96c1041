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
#include <algorithm>

#include "cohort/schedule/generators.h"

namespace cohort {
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

}  // namespace cohort
