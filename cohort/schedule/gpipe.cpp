// GPipe: all forwards, then all backwards (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
// NeurIPS 2019, section 2.3).
//
//   order     rank i runs stage i: F0 ... F(m-1), then B0 ... B(m-1). The paper runs the backwards from the last micro-batch to the first;
//             with equal times both take as long, and this order frees activations of all ranks in the order in which they came
//   bubble    (p - 1) / (m + p - 1)
//   stash     m micro-batches on every rank
//   messages  2 m (p - 1)
#include "cohort/schedule/generators.h"

namespace cohort {

Schedule make_gpipe(const PipelineShape& shape) {
  Schedule schedule = empty_schedule(shape, shape.num_ranks);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    for (int k = 0; k < shape.num_micro_batches; ++k) schedule.actions[rank].push_back(forward(rank, k));
    for (int k = 0; k < shape.num_micro_batches; ++k) schedule.actions[rank].push_back(backward(rank, k));
  }
  return schedule;
}

}  // namespace cohort
