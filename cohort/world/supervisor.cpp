#include "cohort/world/supervisor.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/world/process.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr double kMaxKillSeconds = 10;  // Until the memory of a killed process is released.

int64_t counter_in_file(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value)
    if (name == key) return value;
  return -1;
}

class RankSupervisor final : public Supervisor {
 public:
  RankSupervisor(const StatusPage& status, const LaunchOptions& options)
      : status_(status), options_(options), oom_kills_before_(num_oom_kills()) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGCHLD);
    // Without ignored signals: a blocked signal would be delivered in spite of that.
    for (const int signal : stop_signals()) sigaddset(&signals_, signal);
    struct sigaction stop{};
    if (::sigaction(SIGTSTP, nullptr, &stop) == 0 && stop.sa_handler != SIG_IGN) sigaddset(&signals_, SIGTSTP);
    ::sigprocmask(SIG_BLOCK, &signals_, &signals_before_);
  }

  ~RankSupervisor() override {
    kill_all();
    ::sigprocmask(SIG_SETMASK, &signals_before_, nullptr);
  }

  RankSupervisor(const RankSupervisor&) = delete;

  const sigset_t& signals_before() const override { return signals_before_; }
  void add(int rank, pid_t pid) override { ranks_.push_back({rank, pid}); }

  void kill_all() override {
    signal_all(SIGKILL);
    // The process groups of ended ranks may still have children.
    for (const Rank& rank : ranks_)
      if (rank.ended) ::kill(-rank.pid, SIGKILL);
    for (Rank& rank : ranks_)
      if (!rank.ended && ::waitpid(rank.pid, &rank.wait_status, 0) == rank.pid) rank.ended = true;
    // Children of the ranks cannot be waited for, and end a moment later.
    const auto any_lives = [&] {
      return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return group_lives(rank.pid); });
    };
    for (AwakeTimer since_kill; any_lives() && since_kill.seconds() < kMaxKillSeconds;)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  int wait() override {
    bool failed = false;
    AwakeTimer since_stop, since_failure;
    std::string stopped_ranks;
    if (stop_requested()) ::kill(::getpid(), SIGTERM);  // Requested before the signals were blocked here.
    for (reap(); !all_ended(); reap()) {
      log_losses();
      const Rank* cause = first_cause();
      if ((cause || rank_0_ended()) && !failed) failed = true, since_failure.restart();
      if (failed && since_failure.seconds() > options_.grace_seconds) {
        for (const Rank& rank : ranks_)
          if (!rank.ended && process_state(rank.pid) == 'T')
            stopped_ranks += concat("; rank ", rank.rank, " (pid ", rank.pid, ") was stopped (SIGSTOP)", end_step_text(rank));
        break;
      }
      if (interrupted_ && is_overdue(since_stop)) break;
      const timespec poll{0, 100'000'000};
      if (handle_signal(::sigtimedwait(&signals_, nullptr, &poll), since_stop)) break;
    }
    kill_all();
    const Rank* cause = first_cause();
    if (cause) {
      if (is_bad_input(*cause)) failure_ = status_[cause->rank].message;
      else failure_ = end_text(*cause) + stopped_ranks + other_ends_text(*cause);
      log_failure(exit_code(*cause), failure_);
      return exit_code(*cause);
    }
    for (const Rank& rank : ranks_)
      if (interrupted_ && (options_.is_one_of_many || rank.killed_by_us || rank.wait_status != 0))
        return static_cast<int>(ErrorCode::kInterrupted);
    // Workers that had not ended by then were computing for nobody, or suspended.
    if (rank_0_ended()) return exit_code(*std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.rank == 0; }));
    for (const Rank& rank : ranks_)
      if (rank.wait_status != 0) return rank.killed_by_us ? static_cast<int>(ErrorCode::kEnvironment) : exit_code(rank);
    return 0;
  }

  const std::string& failure() const override { return failure_; }

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

  bool counts_steps(const Rank& rank) const { return status_[rank.rank].last_step != RankStatus::kCountsNone; }

  void reap() {
    for (Rank& rank : ranks_)
      if (!rank.ended && ::waitpid(rank.pid, &rank.wait_status, WNOHANG) == rank.pid) rank.ended = true, rank.end_order = num_ended_++;
    if (::getpid() == 1) reap_orphans();
  }

  /// The first process of a container adopts all orphans.
  void reap_orphans() {
    for (siginfo_t info{}; ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0; info = {}) {
      if (std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.pid == info.si_pid; })) return;
      ::waitpid(info.si_pid, nullptr, WNOHANG);
    }
  }

  /// Whether a rank has ended and, after a stop request, all its children: a shell dies of the signal before its child has saved.
  bool has_ended(const Rank& rank) const { return rank.ended && !(interrupted_ && group_lives(rank.pid)); }

  /// Ctrl-Z: ranks have process groups of their own, so the terminal suspends only this process.
  void suspend_with_ranks() {
    signal_all(SIGSTOP);
    sigset_t sleep;
    sigemptyset(&sleep);
    sigaddset(&sleep, SIGTSTP);
    ::kill(::getpid(), SIGTSTP);
    ::sigprocmask(SIG_UNBLOCK, &sleep, nullptr);
    ::sigprocmask(SIG_BLOCK, &sleep, nullptr);
    signal_all(SIGCONT);
  }

  /// Whether a rank is writing a checkpoint and makes progress.
  bool is_saving() {
    bool saves = false;
    for (Rank& rank : ranks_) {
      const int64_t now = has_ended(rank) ? 0 : status_[rank.rank].saving.load();
      if (now != rank.saved) rank.since_progress.restart();
      rank.saved = now;
      saves = saves || (now != 0 && rank.since_progress.seconds() < kLongestFileCallSeconds);
    }
    return saves;
  }

  /// Whether the time for a requested stop is over.
  bool is_overdue(AwakeTimer& since_stop) {
    if (is_saving()) since_stop.restart(), was_saving_ = true;
    if (since_stop.seconds() <= options_.stop_seconds) return false;
    log_error(
        concat("ranks did not stop within ", options_.stop_seconds, " s", was_saving_ ? " after their checkpoint" : "", "; killed them"));
    return true;
  }

  /// Handles stop signals and Ctrl-Z; true if all ranks must end at once.
  bool handle_signal(int signal, AwakeTimer& since_stop) {
    if (signal == SIGTSTP) return suspend_with_ranks(), false;
    if (signal < 0 || signal == SIGCHLD) return false;
    if (interrupted_) return true;
    interrupted_ = true;
    since_stop.restart();
    const bool in_steps = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return counts_steps(rank); });
    log_info(in_steps ? "stopping after this step; once more to stop at once" : "told the ranks to stop; once more to stop at once");
    signal_all(SIGTERM);  // Not SIGINT, which a program started in the background may ignore.
    return false;
  }

  void signal_all(int signal) {
    for (Rank& rank : ranks_) {
      if (rank.ended) continue;
      if (signal == SIGKILL) rank.killed_by_us = true;
      ::kill(-rank.pid, signal);
    }
  }

  /// Whether it is a killed worker whose loss the job survives.
  bool is_lost(const Rank& rank) const {
    return options_.workers_may_be_lost && rank.rank != 0 && rank.ended && WIFSIGNALED(rank.wait_status);
  }

  void log_losses() {
    if (rank_0_ended()) return;
    for (Rank& rank : ranks_) {
      if (!is_lost(rank) || rank.killed_by_us || interrupted_ || rank.is_loss_logged) continue;
      rank.is_loss_logged = true;
      log_warning(concat(killed_text(rank), "; the training goes on without it"));
    }
  }

  bool rank_0_ended() const {
    return options_.workers_may_be_lost &&
           std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.rank == 0 && rank.ended; });
  }

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return has_ended(rank); });
  }

  /// The rank that caused the failure: one killed by a signal (not ours), else one that failed for a reason of its own, else any that
  /// failed; of several the one that ended first. Programs that handle errors themselves report no reasons: for them only the order
  /// decides.
  const Rank* first_cause() const {
    const Rank *by_signal = nullptr, *own_reason = nullptr, *any = nullptr;
    const auto take = [](const Rank*& first, const Rank& rank) {
      if (!first || rank.end_order < first->end_order) first = &rank;
    };
    for (const Rank& rank : ranks_) {
      if (!rank.ended || rank.killed_by_us || rank.wait_status == 0 || is_lost(rank)) continue;
      if (WIFSIGNALED(rank.wait_status)) {
        // Before a rank catches signals, the stop request kills it, which is not a failure.
        if (interrupted_ && (WTERMSIG(rank.wait_status) == SIGTERM || WTERMSIG(rank.wait_status) == SIGINT)) continue;
        take(by_signal, rank);
      }
      if (const int code = WIFEXITED(rank.wait_status) ? WEXITSTATUS(rank.wait_status) : 0;
          code == 130 || (interrupted_ && code == 128 + SIGTERM))
        continue;
      if (!status_[rank.rank].secondary) take(own_reason, rank);
      take(any, rank);
    }
    return by_signal ? by_signal : own_reason ? own_reason : any;
  }

  /// " after step 7", or "" if ranks do not report steps.
  std::string end_step_text(const Rank& rank) const {
    if (!options_.counts_steps || !counts_steps(rank)) return "";
    const int64_t step = status_[rank.rank].last_step;
    return step < 0 ? " before its first step" : concat(" after step ", step);
  }

  static std::string killed_text(const Rank& rank) {
    const int signal = WTERMSIG(rank.wait_status);
    return concat("rank ", rank.rank, " (pid ", rank.pid, ") was killed by signal ", signal, " (SIG", ::sigabbrev_np(signal), ")");
  }

  std::string end_text(const Rank& rank) const {
    const RankStatus& status = status_[rank.rank];
    const std::string when = end_step_text(rank);
    if (WIFSIGNALED(rank.wait_status)) {
      const bool out_of_memory = WTERMSIG(rank.wait_status) == SIGKILL && oom_kills_before_ >= 0 && num_oom_kills() > oom_kills_before_;
      return concat(
          killed_text(rank), when,
          out_of_memory
              ? name_settings(": the kernel ran out of memory (its oom_kill counter rose); use a smaller --global-batch or fewer workers")
              : "");
    }
    std::string text = concat("rank ", rank.rank, " (pid ", rank.pid, ") exited with code ", WEXITSTATUS(rank.wait_status), when);
    if (status.error_code && status.message[0]) text += concat(": ", status.message);
    return text;
  }

  /// The end of the other ranks: "; rank 1 (pid 77) had left before it with code 0; the other ranks were ended".
  std::string other_ends_text(const Rank& cause) const {
    size_t num_left = 0;
    const Rank* left = nullptr;
    for (const Rank& rank : ranks_)
      if (!rank.killed_by_us && rank.wait_status == 0 && rank.end_order < cause.end_order) left = &rank, ++num_left;
    std::string text;
    if (num_left == 1) text = concat("; rank ", left->rank, " (pid ", left->pid, ") had left before it with code 0");
    if (num_left > 1) text = concat("; ", num_left, " ranks had left before it with code 0");
    return ranks_.size() > num_left + 1 ? text + "; the other ranks were ended" : text;
  }

  /// Invalid input found before any training, which all ranks report alike.
  bool is_bad_input(const Rank& rank) const {
    const RankStatus& status = status_[rank.rank];
    return WIFEXITED(rank.wait_status) && status.error_code == static_cast<int>(ErrorCode::kBadInput) && status.last_step == -1 &&
           status.message[0];
  }

  int exit_code(const Rank& rank) const {
    return WIFSIGNALED(rank.wait_status) ? static_cast<int>(ErrorCode::kEnvironment) : WEXITSTATUS(rank.wait_status);
  }

  const StatusPage& status_;
  const LaunchOptions& options_;
  sigset_t signals_before_{}, signals_{};
  std::vector<Rank> ranks_;
  int64_t oom_kills_before_;
  int num_ended_ = 0;
  bool interrupted_ = false, was_saving_ = false;
  std::string failure_;
};

}  // namespace

int64_t num_oom_kills() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::")) continue;
    const int64_t kills = counter_in_file("/sys/fs/cgroup" + line.substr(3) + "/memory.events", "oom_kill");
    if (kills >= 0) return kills;
  }
  return counter_in_file("/proc/vmstat", "oom_kill");
}

std::unique_ptr<Supervisor> make_supervisor(const StatusPage& status, const LaunchOptions& options) {
  return std::make_unique<RankSupervisor>(status, options);
}

}  // namespace cohort
