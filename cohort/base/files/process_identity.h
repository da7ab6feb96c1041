#pragma once
// Identifies the process that writes a file, tests whether it is alive, and removes temporary files of dead processes.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// The fields of /proc/PID/stat behind the program's name, indexed by kState and so on, at least up to kVirtualBytes; empty where the
/// process does not exist or /proc is unavailable. Thread-safe.
std::vector<std::string> process_stat(int64_t pid);

namespace stat_field {
inline constexpr size_t kState = 0, kParent = 1, kGroup = 2, kStartTicks = 19,
                        kVirtualBytes = 20;  ///< kStartTicks: clock ticks since boot.
}

/// One line of JSON about this process: boot id of the host, PID namespace, PID, start time.
std::string describe_this_process();

enum class ProcessState { kAlive, kGone, kUnknown };
/// kGone only when certain: same boot of the same host, same PID namespace, and no such process. Invalid text is kUnknown.
ProcessState process_state(const std::string& description);

/// 16 hexadecimal digits that identify this process, for names of temporary files; 4,096 different ones by `count`.
std::string process_nonce(uint64_t count = 0);
/// The state of the process with that nonce; kUnknown for any other text.
ProcessState state_of_nonce(const std::string& nonce);

/// Removes files NAME.tmp.NONCE (temporary_name(); of `name` alone where given) in `folder` whose writer is certainly dead or, where that
/// is unknown (another host), that are older than a day. Ignores failures.
void remove_leftover_files(const std::string& folder, const std::string& name = "") noexcept;

/// Removes folders NAME-NONCE-XXXXXX (TemporaryFolder) of this user in `place` whose creator is certainly dead.
void remove_leftover_folders(const std::string& place, const std::string& name) noexcept;

}  // namespace cohort
