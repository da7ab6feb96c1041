#pragma once
// Processes that have a file: which one it is, whether it still runs, and files that those left behind that do not.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// Fields of /proc/PID/stat behind the program's name, which may hold anything: at kState and so on. All that proc(5) names up to
/// kVirtualBytes, or none: there is no such process, or /proc does not tell. Any thread.
std::vector<std::string> process_stat(int64_t pid);

namespace stat_field {
inline constexpr size_t kState = 0, kParent = 1, kGroup = 2, kStartTicks = 19, kVirtualBytes = 20;  ///< Ticks of the clock since boot.
}

// Which process writes a temporary file or folder, so that another job can tell a dead writer's leftovers from a living writer's work.

/// One line of JSON about this process: boot id of the host, PID namespace, PID, start time.
std::string describe_this_process();

enum class ProcessState { kAlive, kGone, kUnknown };
/// kGone only when it is certain: the same boot of the same host and the same PID namespace, and no such process. Damaged text is kUnknown.
ProcessState process_state(const std::string& description);

/// 16 hexadecimal digits that stand for this process, for names of what it writes for a moment; another 4,096 times for another `count`.
std::string process_nonce(uint64_t count = 0);
/// Of the process with that nonce; kUnknown for any other text.
ProcessState state_of_nonce(const std::string& nonce);

// What killed processes leave: files NAME.tmp.NONCE (temporary_name()) and temporary folders. A living writer's are never touched.

/// Of `folder`, files whose name is one of temporary_name(), of `name` alone where that is given. Those go whose writer is certainly dead
/// or, where that cannot be known (another host's), that have not changed for a day. What cannot be removed stays, without a word.
void remove_leftover_files(const std::string& folder, const std::string& name = "") noexcept;

/// In `place`, folders NAME-NONCE-XXXXXX of this user, as TemporaryFolder makes them, whose maker is certainly dead.
void remove_leftover_folders(const std::string& place, const std::string& name) noexcept;

}  // namespace cohort
