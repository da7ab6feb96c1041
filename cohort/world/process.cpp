#include "cohort/world/process.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace cohort {

char process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(')');  // The name before it may hold anything.
  if (close == std::string::npos || close + 2 >= text.size()) return 'X';
  std::istringstream fields(text.substr(close + 2));
  std::string state, virtual_bytes;
  fields >> state;
  for (int field = 4; field <= 23; ++field) fields >> virtual_bytes;
  // While the memory of a killed process is being taken down, which takes milliseconds, its state is still that of a running one.
  return fields && virtual_bytes == "0" ? 'Z' : state[0];
}

std::string program_path() {
  const std::string self = "/proc/self/exe";
  std::error_code none;
  const std::filesystem::path path = std::filesystem::read_symlink(self, none);
  return !none && ::access(path.c_str(), X_OK) == 0 ? path.string() : self;
}

}  // namespace cohort
