// Tiled reduction: all-reduce or reduce of arrays of which at least one is private to its rank.
//
// The arrays are cut into tiles, a tile into p slices. Three things happen to a tile, one in each of three successive steps:
//   1. stage: rank r copies its addends of the tile, without slice r, into shared memory;
//   2. reduce: it computes slice r from the tiles of the others and its own private addends, in rank order, writes the result into its
//   output
//      and into slice r of its own tile;
//   3. collect: it copies the other slices from the tiles of the ranks that computed them.
// In step i, tile i is staged, tile i - 1 reduced and tile i - 2 collected, so that a step needs one synchronisation and ranks that are
// a little early find work.
//
// Cost for a rank, n bytes, p ranks, T bytes a tile, f = (p - 1) / p: n/T + 1 synchronisations; f n copied in (read and written), n read
// to reduce, n/p written twice, f n copied out: (4 f + 1 + 2/p) n, at p = 2 4 n. Copying everything in and letting every rank reduce
// everything would be 5 n at p = 2 and (p + 3) n in general.
//
// Source: reduce-scatter and all-gather of Rabenseifner (2004) on staging buffers as in DeepSpeed's large shared-memory all-reduce (which
// copies all addends in, waits three times a block, and does not overlap blocks); tiles that stay in cache after Peng et al. (SC 2023).

#include <algorithm>
#include <cstring>

#include "cohort/comm/shm/shm_algorithms.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

class TiledReduction {
 public:
  TiledReduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes)
      : job_(job), steps_(steps), per_tile_(tile_bytes / job.element_bytes), arrays_(static_cast<size_t>(job.size)) {}

  void run() {
    const size_t num_tiles = (job_.count + per_tile_ - 1) / per_tile_;
    for (size_t step = 0; step < num_tiles + 2; ++step) {
      if (step < num_tiles) stage(step);
      if (step >= 1 && step - 1 < num_tiles) reduce(step - 1);
      if (step >= 2) collect(step - 2);
      if (step < num_tiles + 1) steps_.next();
    }
  }

 private:
  struct Range {
    size_t at, in_tile, count;  // Elements: of the whole, of the tile, how many.
    size_t bytes;
  };
  Range range(size_t tile, int rank) const {
    const size_t at = tile * per_tile_;
    const Slice slice = slice_of(std::min(per_tile_, job_.count - at), job_.element_bytes, rank, job_.size);
    return {at + slice.begin, slice.begin, slice.end - slice.begin, (slice.end - slice.begin) * job_.element_bytes};
  }
  size_t bytes_to(size_t elements) const { return elements * job_.element_bytes; }
  bool takes() const { return job_.op == Op::kAllReduce || job_.is_root(); }

  void stage(size_t tile) {
    for (int rank = 0; rank < job_.size; ++rank) {
      const Range of = range(tile, rank);
      if (rank != job_.rank && of.bytes > 0) std::memcpy(steps_.filling() + bytes_to(of.in_tile), job_.input + bytes_to(of.at), of.bytes);
    }
  }

  void reduce(size_t tile) {
    const Range of = range(tile, job_.rank);
    if (of.count == 0) return;
    for (int rank = 0; rank < job_.size; ++rank) {
      const bool own = rank == job_.rank;
      arrays_[static_cast<size_t>(rank)] = own ? job_.input + bytes_to(of.at) : steps_.current(rank) + bytes_to(of.in_tile);
    }
    std::byte* results[2] = {steps_.current(job_.rank) + bytes_to(of.in_tile), nullptr};
    if (takes()) results[1] = job_.output + bytes_to(of.at);
    reduce_arrays(results, takes() ? 2 : 1, arrays_.data(), arrays_.size(), of.count, job_.type, job_.reduction);
  }

  void collect(size_t tile) {
    if (!takes()) return;
    for (int step = 1; step < job_.size; ++step) {
      const int rank = (job_.rank + step) % job_.size;
      const Range of = range(tile, rank);
      if (of.bytes > 0) std::memcpy(job_.output + bytes_to(of.at), steps_.previous(rank) + bytes_to(of.in_tile), of.bytes);
    }
  }

  const ShmJob& job_;
  ShmSteps& steps_;
  const size_t per_tile_;
  std::vector<const std::byte*> arrays_;
};

}  // namespace

void tiled_reduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes) { TiledReduction(job, steps, tile_bytes).run(); }

}  // namespace cohort
