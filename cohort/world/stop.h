#pragma once
// Ctrl-C and SIGTERM in a rank: the first asks training to stop at the end of the step. Torch-free.

namespace cohort {

/// SIGINT and SIGTERM of this process set a flag from now on instead of ending it.
void catch_stop_signals();
/// Whether one has come. Any thread.
bool stop_requested();
/// As if a signal had come (tests, and `--goal`-like ends from outside).
void request_stop();

}  // namespace cohort
