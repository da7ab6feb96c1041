#pragma once
// Watches the ranks of one job from their parent: waits, passes Ctrl-C and Ctrl-Z on, names the rank that failed first, ends the others.
// Torch-free.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/world/status.h"

namespace cohort {

/// Blocks stop_signals(), SIGTSTP and SIGCHLD of the calling thread for its lifetime and reads them itself. One thread.
class Supervisor {
 public:
  struct Limits {
    double grace_seconds, stop_seconds;  ///< While a rank writes a checkpoint the latter does not count.
    bool workers_may_be_lost = false;    ///< All ranks but 0 may be killed, and the job goes on; it ends with rank 0.
    bool is_one_of_many = false;         ///< Ranks that end well although they were to stop make the exit code 130 too.
    bool counts_steps = true;            ///< Else what is said of a rank's end names no step, as with a rank that has never reported one.
  };
  Supervisor(const StatusPage& status, Limits limits);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;

  const sigset_t& signals_before() const { return signals_before_; }
  void add(int rank, pid_t pid);
  void kill_all();
  /// Until all ranks have ended; returns the job's exit code.
  int wait();
  /// The line that wait() printed of a failure, "" for none.
  const std::string& failure() const { return failure_; }

 private:
  struct Rank {
    int rank;
    pid_t pid;
    bool ended = false;
    int wait_status = 0;
    int place = 0;  ///< Among those that have ended, the first is 0.
    bool killed_by_us = false, loss_is_told = false;
    int64_t saved = 0;  ///< RankStatus::saving as it was last seen to change,
    AwakeTimer since_progress{};
  };

  bool counts_steps(const Rank& rank) const;
  void reap();
  void reap_orphans();
  /// Whether a rank has ended and, once a stop was asked for, all that it started: a shell dies of the signal before its child has saved.
  bool is_gone(const Rank& rank) const;
  void sleep_with_ranks();
  bool is_saving();
  bool is_late(AwakeTimer& since_stop);
  bool heed(int signal, AwakeTimer& since_stop);
  void signal_all(int signal);
  bool is_lost(const Rank& rank) const;
  void tell_losses();
  bool server_has_ended() const;
  bool all_gone() const;
  const Rank* first_cause() const;
  /// " after step 7", or "" where ranks count none.
  std::string when_of(const Rank& rank) const;
  static std::string ended_by_signal(const Rank& rank);
  std::string how_it_ended(const Rank& rank) const;
  /// What became of the ranks beside the one to blame: "; rank 1 (pid 77) had left before it with code 0; the other ranks were ended".
  std::string how_others_ended(const Rank& cause) const;
  bool is_bad_input(const Rank& rank) const;
  int exit_code_of(const Rank& rank) const;

  const StatusPage& status_;
  Limits limits_;
  sigset_t signals_before_{}, signals_{};
  std::vector<Rank> ranks_;
  int64_t oom_kills_before_;
  int num_ended_ = 0;
  bool interrupted_ = false, says_saving_ = false;
  std::string failure_;
};

/// How many processes the kernel has killed for want of memory: in this process's cgroup where that is known, else on this machine; -1
/// unknown.
int64_t num_oom_kills();

}  // namespace cohort
