#pragma once
// Ctrl-C, SIGTERM and SIGHUP in a rank: the first asks training to stop at the end of the step. Torch-free.

namespace cohort {

/// SIGINT, SIGTERM and, where it is not ignored (nohup), SIGHUP of this process set a flag from now on instead of ending it. SIGXFSZ is
/// ignored: who writes over a limit of file sizes gets an error.
void catch_stop_signals();
/// The same for the first of these signals, whose successors end the process as they would have: for the time before the training.
void catch_first_stop_signal();
/// These signals end the process again, as they do before any of these calls: for a rank that has nothing to finish or to save.
void end_at_stop_signals();
/// Whether one has come. Any thread.
bool stop_requested();
/// As if a signal had come (tests, and `--goal`-like ends from outside).
void request_stop();

}  // namespace cohort
