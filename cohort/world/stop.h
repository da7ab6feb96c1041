#pragma once
// Signals that ask a rank to stop: the first asks training to save and stop at the end of the step. Torch-free.
//
// SIGINT, SIGTERM, SIGHUP, and SIGUSR1 and SIGUSR2, which batch systems send some time before they kill. Who was told to ignore SIGINT or
// SIGHUP when it was started (`&` in a script, nohup) goes on ignoring them; SIGUSR1 and SIGUSR2 that a program uses itself stay its own.

#include <signal.h>

#include <string>
#include <vector>

namespace cohort {

/// Those of them that this process heeds. Not those that are ignored.
std::vector<int> stop_signals();
/// They set a flag from now on instead of ending the process. SIGXFSZ is ignored: who writes over a limit of file sizes gets an error.
void catch_stop_signals();
/// The same for the first of these signals, whose successors end the process as they would have: for the time before the training.
void catch_first_stop_signal();
/// These signals end the process again, as they do before any of these calls: for a rank that has nothing to finish or to save.
void end_at_stop_signals();
/// Whether one has come. Any thread.
bool stop_requested();
/// As if a signal had come (tests, and `--goal`-like ends from outside).
void request_stop();

inline constexpr char kStoppedBeforeFirstStep[] = "interrupted before the first step; nothing was saved";

/// While one lives there is nothing to save, and a call may wait that does not look at stop_requested(): a second after a stop signal, if
/// it still lives, the process says so and ends with exit code 130. For ranks that nobody else of ours looks after.
class EndsSoonAtStop {
 public:
  EndsSoonAtStop();
  ~EndsSoonAtStop();
  EndsSoonAtStop(const EndsSoonAtStop&) = delete;
};

}  // namespace cohort
