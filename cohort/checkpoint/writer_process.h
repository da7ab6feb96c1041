#pragma once
// Which process writes a temporary folder, so that another job can tell a dead writer's leftovers from a living writer's work.

#include <string>

namespace cohort {

/// One line of JSON about this process: boot id of the host, PID namespace, PID, start time.
std::string describe_this_process();

enum class ProcessState { kAlive, kGone, kUnknown };
/// kGone only when it is certain: the same boot of the same host and the same PID namespace, and no such process. Damaged text is kUnknown.
ProcessState process_state(const std::string& description);

}  // namespace cohort
