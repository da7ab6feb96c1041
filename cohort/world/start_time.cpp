#include "cohort/world/start_time.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace cohort {

double seconds_since_command(const World& world) {
  std::ifstream file("/proc/" + std::to_string(world.launcher == "cohort" ? ::getppid() : ::getpid()) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name in parentheses may hold anything; after it, the 20th field is the start in ticks since boot.
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return -1;
  std::istringstream fields(text.substr(close + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  timespec now{};
  if (!fields || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
  const double started = std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

}  // namespace cohort
