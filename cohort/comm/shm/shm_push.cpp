// In-place push: all-reduce (or reduce) of arrays that all lie in shared memory, at whatever offsets.
//
//   1. start: rank r publishes where its array lies.
//   2. finish: it waits for all, reads slice r of all p arrays, computes in rank order and writes the result into all p arrays (of a
//      reduce: the root's).
//   3. One step, after which all slices are everywhere.
//
// Cost for a rank: n bytes read and n written, whatever p is; two synchronisations; no copy. On the host 2 p n bytes move, the lower bound
// when every rank keeps its own result.
//
// Source: single-copy collectives, XHC (Katevenis et al., CLUSTER 2022), and Rabenseifner's reduce-scatter (2004), whose all-gather becomes
// part of the write. Differences: memory is shared from the start, so nothing is attached or pinned; the order of summation is that of
// ranks.

#include "cohort/comm/shm/shm_algorithms.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {

void push_in_place(const ShmJob& job, ShmSteps& steps) {
  const Slice slice = slice_of(job.count, job.element_bytes, job.rank, job.size);
  const size_t at = slice.begin * job.element_bytes;
  std::vector<const std::byte*> arrays;
  for (const std::byte* source : job.sources) arrays.push_back(source + at);
  std::vector<std::byte*> results;
  for (int rank = 0; rank < job.size; ++rank)
    if (job.op == Op::kAllReduce || rank == job.root) results.push_back(job.targets[static_cast<size_t>(rank)] + at);
  reduce_arrays(results.data(), results.size(), arrays.data(), arrays.size(), slice.end - slice.begin, job.type, job.reduction);
  steps.next();
}

}  // namespace cohort
