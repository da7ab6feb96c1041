// 1F1B: one forward, one backward in turn (PipeDream-Flush: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
// section 2; DAPPLE: Fan et al., PPoPP 2021, section 3).
//
//   order     rank i runs stage i: p-1-i forwards to fill the pipeline, then a forward and a backward in turn, then the backwards left
//   bubble    (p - 1) / (m + p - 1), as GPipe
//   stash     min(m, p - i) micro-batches on rank i, however many there are in a batch
//   messages  2 m (p - 1)
#include <algorithm>

#include "cohort/schedule/generators.h"

namespace cohort {

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

}  // namespace cohort
