#pragma once
// Which process writes a temporary file or folder, so that another job can tell a dead writer's leftovers from a living writer's work.

#include <cstdint>
#include <string>

namespace cohort {

/// One line of JSON about this process: boot id of the host, PID namespace, PID, start time.
std::string describe_this_process();

enum class ProcessState { kAlive, kGone, kUnknown };
/// kGone only when it is certain: the same boot of the same host and the same PID namespace, and no such process. Damaged text is kUnknown.
ProcessState process_state(const std::string& description);

/// 16 hexadecimal digits that stand for this process, for names of what it writes for a moment; another 4,096 times for another `count`.
std::string process_nonce(uint64_t count = 0);
/// Of the process with that nonce; kUnknown for any other text.
ProcessState state_of_nonce(const std::string& nonce);

}  // namespace cohort
