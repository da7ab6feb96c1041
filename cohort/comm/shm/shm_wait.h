#pragma once
// Waiting for another rank's counter, which ends when that rank has.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/comm/shm/shm_arena.h"

namespace cohort {

// Whether another process of this machine still lives, known before its memory has been taken down.
//
// When a process is killed the kernel first detaches every thread from the memory, then takes the memory down, and only then does the
// process's pidfd become readable, its sockets close and its last thread become a zombie. For a rank, which maps LibTorch and large arrays,
// that is milliseconds later. A thread that is detached has 0 pages in /proc/PID/task/TID/statm, and can neither run code of the program
// nor write into shared memory any more.
//
// Steps of a look: 1. read the main thread's statm through a descriptor opened at the start: pages mean that the process lives.
// 2. Without pages it is being killed, or only its main thread has ended (pthread_exit): it lives as long as any thread has pages.
// Where /proc cannot be read the pidfd alone decides.
//
// Cost: a system call of about a microsecond while the process lives. Source: proc_pid_statm(5), pidfd_open(2). Robust futexes
// (set_robust_list(2)) would tell as early, but need a thread in every rank that holds them, and say nothing to a group over a network.

/// A line to one process. The process of that id at construction is meant, also when the id is given to another one later. Thread-safe.
class ProcessWatch {
 public:
  explicit ProcessWatch(int pid);

  /// Whether no thread of the process can run its program any more. What any of them had written before is visible then. An exec does not
  /// end a process, nor does the end of its main thread alone.
  bool has_exited() const;

 private:
  int pid_;
  UniqueDescriptor pidfd_, memory_;  // `memory_`: /proc/PID/statm; none where it cannot be trusted.
};

/// Publishes `value`: whatever this rank wrote before is visible to a rank that has seen it. Wakes sleepers.
void publish(ShmFlag& flag, uint64_t value);

/// Waits for peers of one arena. One thread at a time.
///
/// A wait spins for some tens of microseconds (only where every rank can have a core of its own, and not while the one that it waits for
/// was last seen on the same core), then yields for longer than another program's slice, then sleeps on a futex. Where ranks share cores it
/// yields a few times and sleeps.
/// After the spins it looks once in a millisecond whether a peer that it waits for has ended (ProcessWatch), so a dead peer is found at once
/// and a stopped one by the time-out.
class ShmWaiter {
 public:
  /// `pids`: process of each rank; those of this process itself (ranks as threads) are not watched.
  ShmWaiter(const std::vector<int>& pids, double timeout_seconds);
  ShmWaiter(const ShmWaiter&) = delete;

  /// Returns once `flag` of rank `peer` is at least `value`; std::runtime_error "rank 2 has ended" or "rank 2 did not come within 5 s".
  void wait(ShmFlag& flag, uint64_t value, int peer) const {
    if (!spin(flag, value)) wait_slowly({{&flag, peer}}, value);
  }
  /// The same for `flag_of(rank)` of every rank but `self`: any of those still missing that has ended is an error at once.
  template <typename FlagOf>
  void wait_all(int self, uint64_t value, FlagOf flag_of) const {
    const int size = static_cast<int>(watches_.size());
    for (int peer = 0; peer < size; ++peer) {
      if (peer == self || spin(flag_of(peer), value)) continue;
      std::vector<Awaited> missing;
      for (int other = peer; other < size; ++other)
        if (other != self) missing.push_back({&flag_of(other), other});
      return wait_slowly(std::move(missing), value);
    }
  }
  /// Waits until `done` returns true, which is called again and again and after each change of `flag`. `peer` -1: any rank but `self`.
  /// The time-out counts from the last call of `moved` that returned true. `what` is the text of a time-out.
  void wait_until(const std::function<bool()>& done, const std::function<bool()>& moved, ShmFlag* flag, int peer, int self,
                  const std::string& what) const;

  static bool has_reached(const ShmFlag& flag, uint64_t value) { return flag.value.load(std::memory_order_acquire) >= value; }
  /// Whether the process of `peer` has ended.
  bool has_ended(int peer) const;
  double timeout_seconds() const { return timeout_.count(); }

  /// What else a rank may do while it waits: nothing; there is something, so a wait shall not sleep for long; it did something, so its
  /// time-out begins again.
  enum class Idle { kNothing, kPending, kMoved };
  void set_idle(std::function<Idle()> idle) { idle_ = std::move(idle); }
  /// Where each rank notes what it found (1 + the rank that has ended), so that ranks waiting for somebody else learn of it; `self` writes.
  void set_lost_flags(std::vector<ShmFlag*> flags, int self);

 private:
  struct Awaited {
    ShmFlag* flag;
    int peer;
  };
  using Clock = std::chrono::steady_clock;

  bool spin(const ShmFlag& flag, uint64_t value) const;
  void wait_slowly(std::vector<Awaited> missing, uint64_t value) const;
  void check_lost() const;
  [[noreturn]] void report_lost(int peer) const;
  Idle run_idle() const { return idle_ ? idle_() : Idle::kNothing; }

  std::vector<std::unique_ptr<ProcessWatch>> watches_;  // None to a rank of this process.
  std::chrono::duration<double> timeout_;
  int num_spins_;
  std::chrono::microseconds yields_for_;  // Before it sleeps.
  std::function<Idle()> idle_;
  std::vector<ShmFlag*> lost_;
  int self_ = -1;
};

}  // namespace cohort
