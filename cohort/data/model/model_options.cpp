#include "cohort/data/model/model_options.h"

#include <algorithm>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

template <typename Number>
Number checked_number(const std::string& key, const std::string& text, std::optional<Number> value, const char* what, Number minimum,
                      Number maximum) {
  if (!value) fail(ErrorCode::kBadInput, "model option ", key, "=", text, ": expected ", what, " from ", minimum, " to ", maximum);
  return *value;
}

}  // namespace

/// `NAME[:key=value,...]`
ModelSpecification parse_model(const std::string& text) {
  constexpr const char* kForm = "expected NAME or NAME:key=value,key=value";
  const size_t colon = text.find(':');
  ModelSpecification result{text.substr(0, colon), {}};
  if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    fail(ErrorCode::kBadInput, "model ", quote_text(text), " holds a control character; ", kForm);
  if (result.name.empty()) fail(ErrorCode::kBadInput, "model '", text, "': the name is missing; ", kForm);
  if (colon == std::string::npos) return result;
  const std::string options = text.substr(colon + 1);
  for (const std::string& item : options.empty() ? std::vector<std::string>{""} : split(options, ',')) {
    const auto [key, value] = split_once(item, '=');
    if (key.empty() || value.value_or("").empty()) fail(ErrorCode::kBadInput, "model '", text, "': '", item, "' is not key=value; ", kForm);
    if (!result.values.emplace(key, *value).second) fail(ErrorCode::kBadInput, "model '", text, "': ", key, " is given twice");
  }
  return result;
}

const std::string* ModelOptions::find(const std::string& key) const {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

int64_t ModelOptions::integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  return checked_number(key, *value, parse_integer(*value, minimum, maximum), "a whole number", minimum, maximum);
}

double ModelOptions::number(const std::string& key, double fallback, double minimum, double maximum) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  return checked_number(key, *value, parse_number(*value, minimum, maximum), "a number", minimum, maximum);
}

std::string ModelOptions::text(const std::string& key, const std::string& fallback, const std::vector<std::string>& allowed) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), *value) == allowed.end()) {
    fail(ErrorCode::kBadInput, "model option ", key, "=", *value, ": expected ", join(allowed, " or "), did_you_mean(*value, allowed));
  }
  return *value;
}

void ModelOptions::check_all_used(const std::string& model) const {
  for (const auto& [key, value] : values_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (known_.empty()) fail(ErrorCode::kBadInput, "model ", model, " has no options, but '", key, "' was given");
    fail(ErrorCode::kBadInput, "model ", model, " has no option '", key, "'", did_you_mean(key, known_), "; options: ", join(known_, " "));
  }
}

}  // namespace cohort
