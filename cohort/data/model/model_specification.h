#pragma once
// `--model NAME:key=value,...` as words.

#include <map>
#include <string>

namespace cohort {

struct ModelSpecification {
  std::string name;
  std::map<std::string, std::string> values;
};
/// Error(kBadInput) for what is neither NAME nor NAME:key=value,...
ModelSpecification parse_model(const std::string& text);

}  // namespace cohort
