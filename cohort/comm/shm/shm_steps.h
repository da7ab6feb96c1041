#pragma once
// Steps that all ranks of a group take together inside a large call, and the tiles that go with them.
//
// In step s a rank fills its tile s + 1, reads the tiles s of all ranks and may still read the tiles s - 1. Nobody enters step s before all
// have left step s - 1, so three tiles a rank are enough: the one being filled is read by nobody. That holds from one call to the next too,
// so a call needs no step at its end for the sake of the tiles.

#include "cohort/comm/shm/shm_board.h"
#include "cohort/comm/shm/shm_wait.h"

namespace cohort {

class ShmSteps {
 public:
  ShmSteps(const ShmBoard& board, const ShmWaiter& waiter) : board_(board), waiter_(waiter) {}

  /// Ends this rank's step and waits until all have ended theirs: what they wrote in it is visible.
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

}  // namespace cohort
