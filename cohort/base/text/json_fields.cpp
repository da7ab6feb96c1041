#include "cohort/base/text/json_fields.h"

#include <cmath>

namespace cohort {
namespace {

std::vector<int64_t> counts_of(const Json& array, const std::string& where, const std::string& what) {
  std::vector<int64_t> out;
  if (!array.is_array()) fail(ErrorCode::kBadInput, where, ": ", what, ": expected a list, found ", shown_json(array));
  for (const Json& value : array) {
    if (!is_natural(value)) fail(ErrorCode::kBadInput, where, ": ", what, ": expected whole numbers from 0 up, found ", shown_json(value));
    out.push_back(value.get<int64_t>());
  }
  return out;
}

}  // namespace

bool is_natural(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  return value.is_number_integer() && value.get<int64_t>() >= 0;
}

std::string shown_json(const Json& value) {
  if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.dump();
}

JsonFields::JsonFields(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) refuse("expected an object, found ", shown_json(object));
}

void JsonFields::refuse_value(const char* key, const std::string& expected, const Json& found) const {
  refuse("expected ", expected, " in \"", key, "\", found ", shown_json(found));
}

const Json& JsonFields::member(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) refuse("\"", key, "\" is missing");
  return *found;
}

const std::string& JsonFields::text(const char* key) const {
  const Json& value = member(key);
  if (!value.is_string()) refuse_value(key, "a string", value);
  return value.get_ref<const std::string&>();
}

bool JsonFields::flag(const char* key) const {
  const Json& value = member(key);
  if (!value.is_boolean()) refuse_value(key, "true or false", value);
  return value.get<bool>();
}

double JsonFields::number(const char* key) const { return number_value(member(key), key); }

double JsonFields::number_value(const Json& value, const char* key) const {
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse_value(key, "a number", value);
  return value.get<double>();
}

int64_t JsonFields::natural(const char* key, int64_t most) const {
  const Json& value = member(key);
  if (!is_natural(value) || value.get<int64_t>() > most)
    refuse_value(key, concat("a whole number from 0 to ", most == INT64_MAX ? "2^63-1" : std::to_string(most)), value);
  return value.get<int64_t>();
}

const Json& JsonFields::array(const char* key, size_t max_items) const {
  const Json& value = member(key);
  if (!value.is_array()) refuse_value(key, concat("an array of at most ", max_items, " items"), value);
  if (value.size() > max_items) refuse("expected an array of at most ", max_items, " items in \"", key, "\", found ", value.size());
  return value;
}

std::vector<std::string> JsonFields::texts(const char* key, size_t max_items) const {
  std::vector<std::string> values;
  for (const Json& item : array(key, max_items)) {
    if (!item.is_string()) refuse_value(key, "strings", item);
    values.push_back(item.get<std::string>());
  }
  return values;
}

std::vector<double> JsonFields::numbers(const char* key, size_t max_items) const {
  std::vector<double> values;
  for (const Json& item : array(key, max_items)) values.push_back(number_value(item, key));
  return values;
}

std::vector<int64_t> JsonFields::naturals(const char* key, size_t max_items) const {
  std::vector<int64_t> values;
  for (const Json& item : array(key, max_items)) {
    if (!is_natural(item)) refuse_value(key, "a whole number from 0 to 2^63-1", item);
    values.push_back(item.get<int64_t>());
  }
  return values;
}

JsonLine::JsonLine(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) fail(ErrorCode::kBadInput, where, ": expected a JSON object, found ", shown_json(object));
}

const Json* JsonLine::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void JsonLine::refuse(const char* key, const char* expected, const Json* found) const {
  fail(ErrorCode::kBadInput, where_, ": '", key, "': expected ", expected, ", found ", found ? shown_json(*found) : "nothing");
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
  if (!is_natural(*value)) refuse(key, "a whole number from 0 up", value);
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
