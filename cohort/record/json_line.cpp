#include "cohort/record/json_line.h"

#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {
namespace {

bool is_count(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= INT64_MAX;
  return value.is_number_integer() && value.get<int64_t>() >= 0;
}

std::string shown(const Json& value) {
  if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.dump();
}

std::vector<int64_t> counts_of(const Json& array, const std::string& where, const std::string& what) {
  std::vector<int64_t> out;
  if (!array.is_array()) fail(ErrorCode::kBadInput, where, ": ", what, ": expected a list, found ", shown(array));
  for (const Json& value : array) {
    if (!is_count(value)) fail(ErrorCode::kBadInput, where, ": ", what, ": expected whole numbers from 0 up, found ", shown(value));
    out.push_back(value.get<int64_t>());
  }
  return out;
}

}  // namespace

JsonLine::JsonLine(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) fail(ErrorCode::kBadInput, where, ": expected a JSON object, found ", shown(object));
}

const Json* JsonLine::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void JsonLine::refuse(const char* key, const char* expected, const Json* found) const {
  fail(ErrorCode::kBadInput, where_, ": '", key, "': expected ", expected, ", found ", found ? shown(*found) : "nothing");
}

bool JsonLine::has(const char* key) const { return object_.contains(key); }

double JsonLine::number(const char* key) const {
  const Json* value = find(key);
  if (!value) return std::numeric_limits<double>::quiet_NaN();
  if (!value->is_number()) refuse(key, "a number or null", value);
  return value->get<double>();
}

std::optional<int64_t> JsonLine::count(const char* key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!is_count(*value)) refuse(key, "a whole number from 0 up", value);
  return value->get<int64_t>();
}

int64_t JsonLine::required_count(const char* key) const {
  const auto value = count(key);
  if (!value) refuse(key, "a whole number from 0 up", nullptr);
  return *value;
}

std::string JsonLine::text(const char* key) const {
  const Json* value = find(key);
  if (!value) return "";
  if (!value->is_string()) refuse(key, "a string", value);
  return value->get<std::string>();
}

std::string JsonLine::required_text(const char* key) const {
  if (!find(key)) refuse(key, "a string", nullptr);
  return text(key);
}

const Json* JsonLine::array(const char* key) const {
  const Json* value = find(key);
  if (value && !value->is_array()) refuse(key, "a list", value);
  return value;
}

const Json& JsonLine::required_array(const char* key) const {
  const Json* value = array(key);
  if (!value) refuse(key, "a list", nullptr);
  return *value;
}

const Json* JsonLine::object(const char* key) const {
  const Json* value = find(key);
  if (value && !value->is_object()) refuse(key, "an object", value);
  return value;
}

std::vector<std::string> JsonLine::texts(const char* key) const {
  std::vector<std::string> out;
  const Json* list = array(key);
  if (!list) return out;
  for (const Json& value : *list) {
    if (!value.is_string()) refuse(key, "strings", &value);
    out.push_back(value.get<std::string>());
  }
  return out;
}

std::vector<double> JsonLine::numbers(const char* key) const {
  std::vector<double> out;
  const Json* list = array(key);
  if (!list) return out;
  for (const Json& value : *list) {
    if (!value.is_number() && !value.is_null()) refuse(key, "numbers or null", &value);
    out.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return out;
}

std::vector<int64_t> JsonLine::counts(const char* key) const {
  const Json* list = array(key);
  return list ? counts_of(*list, where_, concat("'", key, "'")) : std::vector<int64_t>();
}

std::vector<std::vector<int64_t>> JsonLine::count_rows(const char* key) const {
  std::vector<std::vector<int64_t>> out;
  const Json* list = array(key);
  if (!list) return out;
  for (const Json& row : *list) out.push_back(counts_of(row, where_, concat("a row of '", key, "'")));
  return out;
}

std::map<std::string, double> JsonLine::named_numbers(const char* key) const {
  std::map<std::string, double> out;
  const Json* named = object(key);
  if (!named) return out;
  for (const auto& [name, value] : named->items()) {
    if (!value.is_number() && !value.is_null()) refuse(key, "numbers or null", &value);
    const bool is_name =
        !name.empty() && name.size() <= 100 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos;
    if (!is_name) fail(ErrorCode::kBadInput, where_, ": '", key, "': a name is of a-z, 0-9, - and _, found ", quote_text(name));
    out[name] = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  }
  return out;
}

std::string JsonLine::json(const char* key) const {
  const Json* value = find(key);
  return value ? value->dump() : "";
}

}  // namespace cohort
