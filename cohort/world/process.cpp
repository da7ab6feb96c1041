#include "cohort/world/process.h"

#include <fstream>
#include <string>

namespace cohort {

char process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(')');  // The name before it may hold anything.
  return close != std::string::npos && close + 2 < text.size() ? text[close + 2] : 'X';
}

}  // namespace cohort
