// All-read: every rank reads the inputs of all others where they lie and computes its own result.
//
//   1. start: a rank puts its input where others can read it (into the slot, or a copy) and publishes the slot.
//   2. finish: it waits for all slots, reads what it needs and writes its output.
//
// Cost for a rank, n bytes an input, p ranks: one published line, p - 1 lines waited for; n copied, p n read, n written for a reduction.
// One synchronisation, which is the least there can be, but p times the reading of a scheme in slices: right for small inputs, which lie in
// caches. Copies are used again only after all ranks have published that they are done (ShmBoard::Counters::completed), which takes no wait
// while the ring is long enough. Inputs that are shared themselves are read in place; the caller then adds a step at the end, since it may
// change them when its call returns.
//
// Source: fan-in/fan-out of Graham and Shipman (EuroPVM/MPI 2008), and the small-message path of DeepSpeed's shared-memory kernels, which
// copies results out of one fixed buffer and needs a second synchronisation for it; the ring of slots saves that one.

#include <algorithm>
#include <cstring>

#include "cohort/comm/shm/shm_algorithms.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

void reduce_piece(const ShmJob& job, size_t at) {
  constexpr int kFew = 16;
  const std::byte* few[kFew];
  std::vector<const std::byte*> many(job.size > kFew ? static_cast<size_t>(job.size) : 0);
  const std::byte** const arrays = job.size > kFew ? many.data() : few;
  for (int from = 0; from < job.size; ++from) arrays[from] = job.sources[static_cast<size_t>(from)] + at;
  std::byte* const output = job.output;
  reduce_arrays(&output, 1, arrays, static_cast<size_t>(job.size), job.count, job.type, job.reduction);
}

}  // namespace

void all_read(const ShmJob& job) {
  if (job.op == Op::kBarrier) return;
  if (job.reduces_whole()) {
    if (job.count > 0 && (job.op == Op::kAllReduce || job.is_root())) reduce_piece(job, 0);
    return;
  }
  if (job.op == Op::kReduceScatter) {
    if (job.count > 0) reduce_piece(job, static_cast<size_t>(job.rank) * job.bytes());
    return;
  }
  // Each rank begins with its neighbour, so that not all read one rank's memory at a time.
  for (int step = 1; step <= job.size; ++step) {
    const int from = (job.rank + step) % job.size;
    const Route route = job.route(from, job.rank);
    if (route.bytes == 0) continue;
    // This rank's own piece may be there already: an all-gather in place.
    if (from == job.rank && job.output + route.place == job.input + route.at) continue;
    std::memcpy(job.output + route.place, job.sources[static_cast<size_t>(from)] + route.at, route.bytes);
  }
}

Slice slice_of(size_t count, size_t element_bytes, int rank, int size) {
  const size_t per_line = std::max<size_t>(1, 64 / element_bytes), lines = (count + per_line - 1) / per_line;
  const size_t index = static_cast<size_t>(rank), num = static_cast<size_t>(size);
  return {std::min(count, lines * index / num * per_line), std::min(count, lines * (index + 1) / num * per_line)};
}

}  // namespace cohort
