#include "cohort/study/study_warnings.h"

#include <filesystem>

#include "cohort/base/json.h"

namespace cohort::study {

std::vector<std::string> warnings_of(const Store& store) {
  const std::optional<std::string> note = store.note("halving");
  const Json text = note ? Json::parse(*note, nullptr, false) : Json();
  return text.is_string() ? std::vector<std::string>{text.get<std::string>()} : std::vector<std::string>{};
}

std::vector<std::string> warnings_of(const std::string& folder) {
  if (!std::filesystem::exists(folder + "/study.db")) return {};
  return warnings_of(Store::open_readonly(folder));
}

}  // namespace cohort::study
