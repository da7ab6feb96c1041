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
#include "cohort/schedule/generators.h"

namespace cohort {

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
