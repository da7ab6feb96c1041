#pragma once
// What the system says of a process, and of how long ago the user started this job.

#include <string>

#include "cohort/world/world.h"

namespace cohort {

/// State letter of process `pid` in /proc: 'R', 'S', 'D' alive; 'T' stopped; 'Z' ended and not yet waited for; 'X' gone. kill(pid, 0) would
/// call a zombie alive. A killed process is 'Z' as soon as its main thread has left the memory, not only when that has been taken down.
/// Not for kernel threads.
char process_state(int pid);
/// Whether a process of that process group runs, sleeps or is stopped; zombies do not count.
bool group_lives(int group);

/// The file of this program, to start it again: under this name `top` and `pgrep` know the process, while /proc/self/exe, which is what is
/// left where the file is gone, would make it "exe".
std::string program_path();

/// Seconds since the process that the user started (this one, or the launcher that forked it) began, loading of its libraries included; to
/// 10 ms, the kernel's clock tick. -1 where /proc does not say.
double seconds_since_command(const World& world);

}  // namespace cohort
