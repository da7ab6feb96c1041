#pragma once
// Process state from /proc, and the time since the user started this job.

#include <string>

#include "cohort/world/world.h"

namespace cohort {

/// State letter of process `pid` in /proc: 'R', 'S', 'D' alive; 'T' stopped; 'Z' zombie; 'X' gone. Unlike kill(pid, 0), tells zombies from
/// live processes. A killed process counts as 'Z' as soon as its main thread has released its memory. Not for kernel threads.
char process_state(int pid);
/// Whether the process group has a process other than zombies.
bool group_lives(int group);

/// The executable of this program, to start it again. /proc/self/exe, which would show the process as "exe" in `top` and `pgrep`, is used
/// only if the file is gone.
std::string program_path();

/// Seconds since the process that the user started (this one, or its launcher) began, including the loading of libraries; resolution 10 ms,
/// the kernel's clock tick. -1 if unknown.
double seconds_since_command(const World& world);

}  // namespace cohort
