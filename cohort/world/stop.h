#pragma once
// Signals that request a stop: training then saves and stops at the end of the step. Torch-free.
//
// The signals are SIGINT, SIGTERM, SIGHUP, and SIGUSR1 and SIGUSR2, which batch systems send some time before they kill. SIGINT and SIGHUP
// that were ignored when the process started (`&` in a script, nohup) stay ignored; SIGUSR1 and SIGUSR2 with a program's own handler stay
// its own.

#include <signal.h>

#include <string>
#include <vector>

namespace cohort {

/// The signals that request a stop in this process, without ignored ones.
std::vector<int> stop_signals();
/// From now on they set a flag instead of ending the process. Also ignores SIGXFSZ, so that exceeding a file size limit is a write error.
void catch_stop_signals();
/// The same for the first signal only; a second ends the process. For the time before the training.
void catch_first_stop_signal();
/// Restores the default action: for a rank with nothing to finish or save.
void restore_default_stop_signals();
/// Whether a stop was requested. Any thread.
bool stop_requested();
/// As if a signal had arrived.
void request_stop();

inline constexpr char kStoppedBeforeFirstStep[] = "interrupted before the first step; nothing was saved";

/// For a phase with nothing to save in which a blocking call may not check stop_requested(): if the object still exists a second after a
/// stop signal, the process ends with a message and exit code 130. For ranks without our launcher.
class ExitSoonAfterStop {
 public:
  ExitSoonAfterStop();
  ~ExitSoonAfterStop();
  ExitSoonAfterStop(const ExitSoonAfterStop&) = delete;
};

}  // namespace cohort
