#pragma once
// Supervises the ranks of one job from their parent: forwards Ctrl-C and Ctrl-Z, names the rank that failed first, ends the others.
// Torch-free.

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "cohort/world/launch.h"
#include "cohort/world/status.h"

namespace cohort {

/// During its lifetime it blocks stop_signals(), SIGTSTP and SIGCHLD in the calling thread and handles them itself. One thread.
class Supervisor {
 public:
  virtual ~Supervisor() = default;
  virtual const sigset_t& signals_before() const = 0;
  virtual void add(int rank, pid_t pid) = 0;
  virtual void kill_all() = 0;
  /// Waits until all ranks have ended; returns the job's exit code.
  virtual int wait() = 0;
  /// The failure that wait() printed, "" for none.
  virtual const std::string& failure() const = 0;
};

/// Both must outlive it.
std::unique_ptr<Supervisor> make_supervisor(const StatusPage& status, const LaunchOptions& options);

/// Number of processes killed by the kernel for lack of memory: in this process's cgroup if known, else on this machine; -1 if unknown.
int64_t num_oom_kills();

}  // namespace cohort
