#pragma once
// Waits for another rank's counter, and detects that the rank has ended.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/comm/shm/shm_arena.h"

namespace cohort {

// Detects the end of another process of this machine before its memory has been torn down.
//
// When a process is killed the kernel first detaches every thread from the memory, then takes the memory down, and only then does the
// process's pidfd become readable, its sockets close and its last thread become a zombie. For a rank with LibTorch and large arrays mapped
// that takes milliseconds. A thread that is detached has 0 pages in /proc/PID/task/TID/statm, and can neither run code of the program nor
// write into shared memory any more.
//
// Steps of a check: 1. read the main thread's statm through a descriptor opened at the start: pages mean that the process lives.
// 2. Without pages it is being killed, or only its main thread has ended (pthread_exit): it lives while any thread has pages. Where /proc
// cannot be read the pidfd alone decides.
//
// Cost: a system call of about a microsecond while the process lives. Source: proc_pid_statm(5), pidfd_open(2). Robust futexes
// (set_robust_list(2)) would be as early, but need a thread in every rank that holds them and do not help network groups.

/// Watches the process that has this id at construction, also when the id is reused. Thread-safe.
class ProcessWatch {
 public:
  explicit ProcessWatch(int pid);

  /// Whether no thread of the process can run its program any more; all it had written is then visible. Neither an exec nor the end of the
  /// main thread alone ends a process.
  bool has_exited() const;

 private:
  int pid_;
  UniqueDescriptor pidfd_, memory_;  // `memory_`: /proc/PID/statm, none where unreliable.
};

/// Publishes `value`: earlier writes of this rank are visible to ranks that have seen it. Wakes sleepers.
void publish(ShmFlag& flag, uint64_t value);

/// Waits for peers of one arena. One thread at a time.
/// A wait spins for some tens of microseconds (only where every rank can have a core of its own, and not while the awaited rank was last
/// seen on the same core), then yields for longer than another program's time slice, then sleeps on a futex. Where ranks share cores it
/// yields a few times and sleeps. After spinning it checks every millisecond whether an awaited peer has ended (ProcessWatch), so that a
/// dead peer is found at once and a stopped one by the time-out.
class ShmWaiter {
 public:
  /// `pids`: process of each rank; this process itself (ranks as threads) is not watched.
  ShmWaiter(const std::vector<int>& pids, double timeout_seconds);
  ShmWaiter(const ShmWaiter&) = delete;

  /// Returns once `flag` of rank `peer` is at least `value`; std::runtime_error "rank 2 has ended" or "rank 2 did not come within 5 s".
  void wait(ShmFlag& flag, uint64_t value, int peer) const {
    if (!spin(flag, value)) wait_slowly({{&flag, peer}}, value);
  }
  /// The same for `flag_of(rank)` of every rank but `self`; fails as soon as any missing one has ended.
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
  /// Waits until `done`, which is called repeatedly and after each change of `flag`. `peer` -1: any rank but `self`. The time-out counts
  /// from the last `moved` that returned true. `what` is its text.
  void wait_until(const std::function<bool()>& done, const std::function<bool()>& moved, ShmFlag* flag, int peer, int self,
                  const std::string& what) const;

  static bool has_reached(const ShmFlag& flag, uint64_t value) { return flag.value.load(std::memory_order_acquire) >= value; }
  /// Whether the process of `peer` has ended.
  bool has_ended(int peer) const;
  double timeout_seconds() const { return timeout_.count(); }

  /// Other work while waiting: none; pending, so a wait must not sleep for long; done, so the time-out restarts.
  enum class Idle { kNothing, kPending, kMoved };
  void set_idle(std::function<Idle()> idle) { idle_ = std::move(idle); }
  /// Where each rank publishes what it found (1 + the rank that has ended), for ranks that wait for others; `self` writes.
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

  std::vector<std::unique_ptr<ProcessWatch>> watches_;  // None for ranks in this process.
  std::chrono::duration<double> timeout_;
  int num_spins_;
  std::chrono::microseconds yields_for_;
  std::function<Idle()> idle_;
  std::vector<ShmFlag*> lost_;
  int self_ = -1;
};

}  // namespace cohort
