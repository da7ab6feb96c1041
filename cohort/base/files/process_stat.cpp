#include "cohort/base/files/process_stat.h"

#include <fstream>
#include <sstream>

namespace cohort {

std::vector<std::string> process_stat(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // The name may hold line breaks.
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream words(text.substr(close + 1));
  std::vector<std::string> fields;
  for (std::string field; words >> field;) fields.push_back(field);
  return fields.size() > stat_field::kVirtualBytes ? fields : std::vector<std::string>();
}

}  // namespace cohort
