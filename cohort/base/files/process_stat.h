#pragma once

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

}  // namespace cohort
