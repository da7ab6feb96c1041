#pragma once
// Waiting for another rank's counter.

#include <chrono>
#include <cstdint>
#include <vector>

#include "cohort/comm/shm_arena.h"

namespace cohort {

/// Publishes `value`: whatever this rank wrote before is visible to a rank that has seen it. Wakes sleepers.
void publish(ShmCounter& counter, uint64_t value);

/// Waits for peers of one arena. One thread.
///
/// A wait spins for some tens of microseconds (only where every rank can have a core of its own), then yields, then sleeps on a futex.
/// Asleep it looks every few milliseconds whether the peer's process has ended (pidfd), so a dead peer is found at once and a stopped one
/// by the time-out.
class ShmWaiter {
 public:
  /// `pids`: process of each rank; those of this process itself (ranks as threads) are not watched.
  ShmWaiter(const std::vector<int>& pids, double timeout_seconds);
  ~ShmWaiter();
  ShmWaiter(const ShmWaiter&) = delete;

  /// Returns once `counter` of rank `peer` is at least `value`; std::runtime_error when the peer has ended or the time-out has passed.
  void wait(ShmCounter& counter, uint64_t value, int peer) const;
  static bool has_reached(const ShmCounter& counter, uint64_t value) { return counter.value.load(std::memory_order_acquire) >= value; }

 private:
  bool has_ended(int peer) const;

  std::vector<int> pidfds_;
  std::chrono::duration<double> timeout_;
  int num_spins_, num_yields_;
};

}  // namespace cohort
