#pragma once
// The ways in which a call moves its data through shared memory, one call as they see it, and the steps that ranks take in them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/comm/shm/shm_board.h"
#include "cohort/comm/shm/shm_wait.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Data that `to` needs from `from`: `bytes` at offset `at` of from's input, for offset `place` of to's output.
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
  std::vector<const std::byte*> sources;  ///< Every rank's input where readable here.
  std::vector<std::byte*> targets;        ///< Every rank's output where writable here.
  std::vector<const uint64_t*> counts;    ///< Uneven all-to-all: each rank's elements to, then from each rank. Else empty.

  size_t bytes() const { return count * element_bytes; }
  bool is_root() const { return rank == root; }
  bool reduces_whole() const { return op == Op::kAllReduce || op == Op::kReduce; }
  /// Whether all receivers need the same bytes.
  bool same_for_all() const { return op == Op::kAllGather || op == Op::kBroadcast || op == Op::kGather; }
  /// Not for all-reduce and reduce, where every rank needs everything.
  Route route(int from, int to) const;
  /// The longest route between two different ranks.
  size_t longest_route() const;
};

/// Sets everything but sources, targets and counts.
void fill_job(ShmJob& job, const Call& call, int rank, int size);
/// Whether writing the output would overwrite input that other ranks still need.
bool overwrites_input(const Call& call, int rank, int size);
/// Error(kFailed), the same on all ranks, where a send count differs from the receiver's.
void check_counts(const ShmJob& job);

// Synchronised steps within a large call, and their tiles.
//
// In step s a rank fills its tile s + 1, reads the tiles s of all ranks and may still read the tiles s - 1. No rank enters step s before
// all have left step s - 1, so three tiles per rank suffice, also from one call to the next.

class ShmSteps {
 public:
  ShmSteps(const ShmBoard& board, const ShmWaiter& waiter) : board_(board), waiter_(waiter) {}

  /// Ends this rank's step and waits for all ranks, whose writes are then visible.
  void next() {
    publish(board_.counters(board_.rank()).step, ++step_);
    waiter_.wait_all(board_.rank(), step_, [&](int peer) -> ShmFlag& { return board_.counters(peer).step; });
  }
  std::byte* filling() const { return board_.tile(board_.rank(), step_ + 1); }
  std::byte* current(int rank) const { return board_.tile(rank, step_); }
  const std::byte* previous(int rank) const { return board_.tile(rank, step_ + ShmBoard::kNumTiles - 1); }

 private:
  const ShmBoard& board_;
  const ShmWaiter& waiter_;
  uint64_t step_ = 0;
};

// The algorithms. ShmTransport selects one, the same on all ranks.

/// Every rank reads what it needs from job.sources.
void all_read(const ShmJob& job);
/// All-reduce or reduce: every rank computes a slice from job.sources and writes it into job.targets.
void push_in_place(const ShmJob& job, ShmSteps& steps);
/// All-reduce or reduce of private memory.
void tiled_reduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes);
/// Any other call with private memory.
void tiled_exchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes);

}  // namespace cohort
