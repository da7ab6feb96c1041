#pragma once
// One call as the algorithms of shared memory see it: who needs which bytes of whom.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// What `to` needs of `from`: `bytes` at `at` in from's input, for `place` in to's output.
struct Route {
  size_t at = 0, place = 0, bytes = 0;
};

struct ShmJob {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;
  at::ScalarType type = at::kByte;
  int root = 0, rank = 0, size = 1;
  size_t count = 0, element_bytes = 1;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<const std::byte*> sources;  ///< Every rank's input, where it can be read here.
  std::vector<std::byte*> targets;        ///< Every rank's output, where it can be written here.
  std::vector<const uint64_t*> counts;    ///< Uneven all-to-all: each rank's elements to, then from each rank. Else empty.

  size_t bytes() const { return count * element_bytes; }
  bool is_root() const { return rank == root; }
  bool reduces_whole() const { return op == Op::kAllReduce || op == Op::kReduce; }
  /// Whether all receivers need the same bytes of a sender.
  bool same_for_all() const { return op == Op::kAllGather || op == Op::kBroadcast || op == Op::kGather; }
  /// Not for all-reduce and reduce, in which everybody needs everything.
  Route route(int from, int to) const;
  /// The longest route between two different ranks.
  size_t longest_route() const;
};

/// Sets everything but sources, targets and counts.
void fill_job(ShmJob& job, const Call& call, int rank, int size);
/// Whether the output lies over the input so that a result would overwrite what others still need.
bool overwrites_input(const Call& call, int rank, int size);
/// Throws Error(kFailed), the same on all ranks, where one rank sends another a number of elements that it does not expect.
void check_piece_counts(const ShmJob& job);

}  // namespace cohort
