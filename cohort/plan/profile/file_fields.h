#pragma once
// One object of a profile or cluster file with its keys, types and ranges checked. A refusal is Error(kBadInput) in one line that names
// its location. Internal to this folder.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {

/// " (did you mean 'x'?)" or ""; long texts are no typing errors, and their edit distance would take long.
inline std::string suggestion(const std::string& text, const std::vector<std::string>& names) {
  return text.size() > 64 ? "" : did_you_mean(text, names);
}

class FileFields {
 public:
  static constexpr size_t kMostTextBytes = 4096, kMostPairs = size_t{1} << 20;

  /// The prefix of a refusal about a key; "" is the whole object.
  using Where = std::function<std::string(const std::string& key)>;

  FileFields(const Json& object, Where where, const std::vector<std::string>& keys, bool is_toml = false)
      : object_(object), where_(std::move(where)), is_toml_(is_toml) {
    if (!object.is_object()) refuse("", "expected ", is_toml ? "a table" : "an object", ", found ", shown(object));
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse(key, "unknown key ", quote_text(key), suggestion(key, keys), "; keys: ", join(keys, " "));
  }
  FileFields(const Json& object, const std::string& where, const std::vector<std::string>& keys)
      : FileFields(object, [where](const std::string&) { return where; }, keys) {}

  template <typename... Parts>
  [[noreturn]] void refuse(const std::string& key, const Parts&... parts) const {
    fail(ErrorCode::kBadInput, where_(key), ": ", parts...);
  }

  bool has(const char* key) const { return object_.contains(key); }
  bool is_empty() const { return object_.empty(); }
  const Json& object() const { return object_; }

  const Json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse("", "'", key, "' is missing");
    return *found;
  }

  /// One line of text.
  std::string text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_string()) refuse(key, "'", key, "' is ", shown(value), "; expected text");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kMostTextBytes) refuse(key, "'", key, "' has ", text.size(), " bytes; at most ", kMostTextBytes, " are accepted");
    if (text.find_first_of("\n\t") != std::string::npos || printable(text) != text)
      refuse(key, "'", key, "' is ", quote_text(text), ": control characters are not accepted");
    return text;
  }

  std::string choice(const char* key, const std::vector<std::string>& allowed) const {
    const std::string value = text(key);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      refuse(key, "'", key, "' is ", quote_text(value), suggestion(value, allowed), "; expected one of: ", join(allowed, " "));
    return value;
  }

  bool flag(const char* key) const {
    const Json& value = member(key);
    if (!value.is_boolean()) refuse(key, "'", key, "' is ", shown(value), "; expected true or false");
    return value.get<bool>();
  }

  int64_t integer(const char* key, int64_t least, int64_t most) const { return integer_value(member(key), key, {}, least, most); }
  double number(const char* key, double least, double most) const { return number_value(member(key), key, {}, least, most); }
  double number(const char* key, double least, double most, double if_missing) const {
    return has(key) ? number(key, least, most) : if_missing;
  }

  const Json& list(const char* key, size_t most) const {
    const Json& value = member(key);
    if (!value.is_array()) refuse(key, "'", key, "' is ", shown(value), "; expected a list");
    if (value.size() > most) refuse(key, "'", key, "' has ", value.size(), " entries; at most ", most, " are accepted");
    return value;
  }

  /// Pairs of an index from `least` up and that of a later layer.
  std::vector<std::pair<int, int>> layer_pairs(const char* key, int64_t least, size_t num_layers) const {
    std::vector<std::pair<int, int>> out;
    const Json& values = list(key, kMostPairs);
    out.reserve(values.size());
    const auto most = static_cast<int64_t>(num_layers) - 1;
    for (const Json& pair : values) {
      const size_t index = out.size();
      if (!pair.is_array() || pair.size() != 2) refuse(key, "'", key, "'", entry_text(index), ": expected a pair of layer indices");
      const int64_t first = integer_value(pair[0], key, index, least, most), second = integer_value(pair[1], key, index, 0, most);
      if (first >= second)
        refuse(key, "'", key, "'", entry_text(index), " is [", first, ", ", second,
               "], which does not lead from an earlier to a later layer");
      out.emplace_back(static_cast<int>(first), static_cast<int>(second));
    }
    return out;
  }

  /// `index`: of an entry of a list.
  int64_t integer_value(const Json& value, const char* key, std::optional<size_t> index, int64_t least, int64_t most) const {
    const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
      refuse(key, "'", key, "'", entry_text(index), " is ", value.is_number() ? json_for_errors(value) : shown(value),
             "; expected a whole number from ", least, " to ", most);
    return value.get<int64_t>();
  }
  double number_value(const Json& value, const char* key, std::optional<size_t> index, double least, double most) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= least && number <= most))
      refuse(key, "'", key, "'", entry_text(index), " is ", shown(value), "; expected a number from ", least, " to ", most);
    return number;
  }

  std::string shown(const Json& value) const {
    if (is_toml_ && value.is_object()) return "a table";
    if (is_toml_ && value.is_null()) return "a date or a time";
    return value.is_number_float() ? concat(value.get<double>()) : json_for_errors(value);
  }

 private:
  static std::string entry_text(std::optional<size_t> index) { return index ? concat("[", *index, "]") : ""; }

  const Json& object_;
  Where where_;
  bool is_toml_;
};

}  // namespace cohort
