#include "cohort/world/start_time.h"

#include <unistd.h>

#include <ctime>
#include <string>
#include <vector>

#include "cohort/base/files/process_identity.h"

namespace cohort {

double seconds_since_command(const World& world) {
  const std::vector<std::string> fields = process_stat(world.launcher == "cohort" ? ::getppid() : ::getpid());
  timespec now{};
  if (fields.empty() || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
  const double started = std::stod(fields[stat_field::kStartTicks]) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

}  // namespace cohort
