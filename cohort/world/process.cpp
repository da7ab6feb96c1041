#include "cohort/world/process.h"

#include <signal.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/text.h"

namespace cohort {

char process_state(int pid) {
  const std::vector<std::string> fields = process_stat(pid);
  if (fields.empty()) return 'X';
  // A killed process looks running for some milliseconds while its memory is released.
  return fields[stat_field::kVirtualBytes] == "0" ? 'Z' : fields[stat_field::kState][0];
}

bool group_lives(int group) {
  if (::kill(-group, 0) != 0) return false;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = parse_integer(entry.path().filename().string());
    if (!pid) continue;
    const std::vector<std::string> fields = process_stat(*pid);
    if (fields.empty() || parse_integer(fields[stat_field::kGroup]) != group) continue;
    // A process whose memory is being released still holds files and sockets.
    if (const char state = fields[stat_field::kState][0]; state != 'Z' && state != 'X') return true;
  }
  return false;
}

std::string program_path() {
  const std::string self = "/proc/self/exe";
  std::error_code none;
  const std::filesystem::path path = std::filesystem::read_symlink(self, none);
  return !none && ::access(path.c_str(), X_OK) == 0 ? path.string() : self;
}

double seconds_since_command(const World& world) {
  const std::vector<std::string> fields = process_stat(world.launcher == "cohort" ? ::getppid() : ::getpid());
  timespec now{};
  if (fields.empty() || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
  const double started = std::stod(fields[stat_field::kStartTicks]) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

}  // namespace cohort
