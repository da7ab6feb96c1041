#include "cohort/data/model/model_options.h"

#include <algorithm>
#include <charconv>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

template <typename Number>
Number parse_number(const std::string& key, const std::string& text, const char* what, Number minimum, Number maximum) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || after != end || !(value >= minimum && value <= maximum)) {
    fail(ErrorCode::kBadInput, "model option ", key, "=", text, ": expected ", what, " from ", minimum, " to ", maximum);
  }
  return value;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
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
  for (size_t begin = colon + 1;;) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      fail(ErrorCode::kBadInput, "model '", text, "': '", item, "' is no key=value; ", kForm);
    }
    const std::string key = item.substr(0, equals);
    if (!result.values.emplace(key, item.substr(equals + 1)).second) {
      fail(ErrorCode::kBadInput, "model '", text, "': ", key, " is given twice");
    }
    if (end == text.size()) return result;
    begin = end + 1;
  }
}

const std::string* ModelOptions::find(const std::string& key) const {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

int64_t ModelOptions::integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const {
  const std::string* value = find(key);
  return value == nullptr ? fallback : parse_number(key, *value, "a whole number", minimum, maximum);
}

double ModelOptions::number(const std::string& key, double fallback, double minimum, double maximum) const {
  const std::string* value = find(key);
  return value == nullptr ? fallback : parse_number(key, *value, "a number", minimum, maximum);
}

std::string ModelOptions::text(const std::string& key, const std::string& fallback, const std::vector<std::string>& allowed) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), *value) == allowed.end()) {
    fail(ErrorCode::kBadInput, "model option ", key, "=", *value, ": expected ", joined(allowed, " or "), did_you_mean(*value, allowed));
  }
  return *value;
}

void ModelOptions::check_all_used(const std::string& model) const {
  for (const auto& [key, value] : values_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (known_.empty()) fail(ErrorCode::kBadInput, "model ", model, " has no options, but '", key, "' was given");
    fail(ErrorCode::kBadInput, "model ", model, " has no option '", key, "'", did_you_mean(key, known_),
         "; options: ", joined(known_, " "));
  }
}

}  // namespace cohort
