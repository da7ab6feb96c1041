#include "cohort/world/process.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/base/process_stat.h"

namespace cohort {

char process_state(int pid) {
  const std::vector<std::string> fields = process_stat(pid);
  if (fields.empty()) return 'X';
  // While the memory of a killed process is being taken down, which takes milliseconds, its state is still that of a running one.
  return fields[stat_field::kVirtualBytes] == "0" ? 'Z' : fields[stat_field::kState][0];
}

std::string program_path() {
  const std::string self = "/proc/self/exe";
  std::error_code none;
  const std::filesystem::path path = std::filesystem::read_symlink(self, none);
  return !none && ::access(path.c_str(), X_OK) == 0 ? path.string() : self;
}

}  // namespace cohort
