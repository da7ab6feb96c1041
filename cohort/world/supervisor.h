#pragma once
// Supervises the ranks of one job from their parent: forwards Ctrl-C and Ctrl-Z, names the rank that failed first, ends the others.
// Torch-free.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/world/launch.h"
#include "cohort/world/status.h"

namespace cohort {

/// During its lifetime it blocks stop_signals(), SIGTSTP and SIGCHLD in the calling thread and handles them itself. One thread.
class Supervisor {
 public:
  /// Both must outlive it.
  Supervisor(const StatusPage& status, const LaunchOptions& options);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;

  const sigset_t& signals_before() const { return signals_before_; }
  void add(int rank, pid_t pid);
  void kill_all();
  /// Waits until all ranks have ended; returns the job's exit code.
  int wait();
  /// The failure that wait() printed, "" for none.
  const std::string& failure() const { return failure_; }

 private:
  struct Rank {
    int rank;
    pid_t pid;
    bool ended = false;
    int wait_status = 0;
    int end_order = 0;  ///< 0 for the first that ended.
    bool killed_by_us = false, is_loss_logged = false;
    int64_t saved = 0;            ///< Last value of RankStatus::saving,
    AwakeTimer since_progress{};  ///< and when it changed.
  };

  bool counts_steps(const Rank& rank) const;
  void reap();
  void reap_orphans();
  /// Whether a rank has ended and, after a stop request, all its children: a shell dies of the signal before its child has saved.
  bool has_ended(const Rank& rank) const;
  void suspend_with_ranks();
  bool is_saving();
  bool is_overdue(AwakeTimer& since_stop);
  bool handle_signal(int signal, AwakeTimer& since_stop);
  void signal_all(int signal);
  bool is_lost(const Rank& rank) const;
  void log_losses();
  bool rank_0_ended() const;
  bool all_ended() const;
  const Rank* first_cause() const;
  /// " after step 7", or "" if ranks do not report steps.
  std::string end_step_text(const Rank& rank) const;
  static std::string killed_text(const Rank& rank);
  std::string end_text(const Rank& rank) const;
  /// The end of the other ranks: "; rank 1 (pid 77) had left before it with code 0; the other ranks were ended".
  std::string other_ends_text(const Rank& cause) const;
  bool is_bad_input(const Rank& rank) const;
  int exit_code(const Rank& rank) const;

  const StatusPage& status_;
  const LaunchOptions& options_;
  sigset_t signals_before_{}, signals_{};
  std::vector<Rank> ranks_;
  int64_t oom_kills_before_;
  int num_ended_ = 0;
  bool interrupted_ = false, was_saving_ = false;
  std::string failure_;
};

/// Number of processes killed by the kernel for lack of memory: in this process's cgroup if known, else on this machine; -1 if unknown.
int64_t num_oom_kills();

}  // namespace cohort
