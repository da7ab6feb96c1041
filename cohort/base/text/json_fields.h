#pragma once
// Members of a JSON object that came from a file, with their types and ranges checked; a refusal says where and what was expected.

#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {

class JsonFields {
 public:
  /// `where` stands before every refusal, e.g. "manifest.json: file \"a\"". Both must outlive the object.
  JsonFields(const Json& object, const std::string& where) : object_(object), where_(where) {
    if (!object.is_object()) refuse("expected an object");
  }

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, where_, ": ", parts...);
  }

  bool has(const char* key) const { return object_.contains(key); }

  const Json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse("\"", key, "\" is missing");
    return *found;
  }

  const std::string& text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_string()) refuse("expected a string in \"", key, "\"");
    return value.get_ref<const std::string&>();
  }

  int64_t natural(const char* key) const { return natural_value(member(key), key); }

  const Json& array(const char* key, size_t max_items) const {
    const Json& value = member(key);
    if (!value.is_array() || value.size() > max_items) refuse("expected an array of at most ", max_items, " items in \"", key, "\"");
    return value;
  }

  std::vector<int64_t> naturals(const char* key, size_t max_items) const {
    std::vector<int64_t> values;
    for (const Json& item : array(key, max_items)) values.push_back(natural_value(item, key));
    return values;
  }

 private:
  int64_t natural_value(const Json& value, const char* key) const {
    // Values that a program made (not parsed) may be stored as signed.
    const bool in_range = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                                     : value.is_number_integer() && value.get<int64_t>() >= 0;
    if (!in_range) refuse("expected a whole number from 0 to 2^63-1 in \"", key, "\"");
    return value.get<int64_t>();
  }

  const Json& object_;
  const std::string& where_;
};

}  // namespace cohort
