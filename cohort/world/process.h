#pragma once
// What the system says of a process.

namespace cohort {

/// State letter of process `pid` in /proc: 'R', 'S', 'D' alive; 'T' stopped; 'Z' ended and not yet waited for; 'X' gone. kill(pid, 0) would
/// call a zombie alive.
char process_state(int pid);

}  // namespace cohort
