#pragma once
// What the system says of a process.

namespace cohort {

/// State letter of process `pid` in /proc: 'R', 'S', 'D' alive; 'T' stopped; 'Z' ended and not yet waited for; 'X' gone. kill(pid, 0) would
/// call a zombie alive. A killed process is 'Z' as soon as its main thread has left the memory, not only when that has been taken down.
/// Not for kernel threads.
char process_state(int pid);

}  // namespace cohort
