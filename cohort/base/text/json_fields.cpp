#include "cohort/base/text/json_fields.h"

#include <cmath>

namespace cohort {
namespace {

constexpr const char *kNatural = "a whole number from 0 to 2^63-1", *kCount = "a whole number from 0 up";

double number_or_nan(const Json& value) { return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>(); }
bool is_number_or_null(const Json& value) { return value.is_number() || value.is_null(); }
bool is_finite_number(const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); }
bool is_text(const Json& value) { return value.is_string(); }

/// The items of `list` as values; `refuse` gets the first that is not `allowed`.
template <typename Value, typename Refuse>
std::vector<Value> values_of(const Json& list, bool (*allowed)(const Json&), const Refuse& refuse, Value (*read)(const Json&) = nullptr) {
  std::vector<Value> out;
  for (const Json& item : list) {
    if (!allowed(item)) refuse(item);
    out.push_back(read ? read(item) : item.template get<Value>());
  }
  return out;
}

}  // namespace

bool is_natural(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  return value.is_number_integer() && value.get<int64_t>() >= 0;
}

std::string json_for_errors(const Json& value) {
  if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return concat(value.get<double>());  // dump() says null; TOML has these.
  return value.dump();
}

JsonFields::JsonFields(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) refuse("expected an object, found ", json_for_errors(object));
}

void JsonFields::refuse_value(const char* key, const std::string& expected, const Json& found) const {
  refuse("expected ", expected, " in \"", key, "\", found ", json_for_errors(found));
}

const Json& JsonFields::member(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) refuse("\"", key, "\" is missing");
  return *found;
}

const Json& JsonFields::member(const char* key, bool (*allowed)(const Json&), const std::string& expected) const {
  const Json& value = member(key);
  if (!allowed(value)) refuse_value(key, expected, value);
  return value;
}

const std::string& JsonFields::text(const char* key) const { return member(key, is_text, "a string").get_ref<const std::string&>(); }

bool JsonFields::flag(const char* key) const {
  return member(key, [](const Json& value) { return value.is_boolean(); }, "true or false").get<bool>();
}

double JsonFields::number(const char* key) const { return member(key, is_finite_number, "a number").get<double>(); }

int64_t JsonFields::natural(const char* key, int64_t most) const {
  const std::string expected = concat("a whole number from 0 to ", most == INT64_MAX ? "2^63-1" : std::to_string(most));
  const Json& value = member(key, is_natural, expected);
  if (value.get<int64_t>() > most) refuse_value(key, expected, value);
  return value.get<int64_t>();
}

const Json& JsonFields::array(const char* key, size_t max_items) const {
  const Json& value = member(key, [](const Json& found) { return found.is_array(); }, concat("an array of at most ", max_items, " items"));
  if (value.size() > max_items) refuse("expected an array of at most ", max_items, " items in \"", key, "\", found ", value.size());
  return value;
}

std::vector<std::string> JsonFields::texts(const char* key, size_t max_items) const {
  return values_of<std::string>(array(key, max_items), is_text, [&](const Json& item) { refuse_value(key, "strings", item); });
}

std::vector<double> JsonFields::numbers(const char* key, size_t max_items) const {
  return values_of<double>(array(key, max_items), is_finite_number, [&](const Json& item) { refuse_value(key, "a number", item); });
}

std::vector<int64_t> JsonFields::naturals(const char* key, size_t max_items) const {
  return values_of<int64_t>(array(key, max_items), is_natural, [&](const Json& item) { refuse_value(key, kNatural, item); });
}

JsonLine::JsonLine(const Json& object, const std::string& where) : object_(object), where_(where) {
  if (!object.is_object()) fail(ErrorCode::kBadInput, where, ": expected a JSON object, found ", json_for_errors(object));
}

const Json* JsonLine::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

const Json* JsonLine::find(const char* key, bool (*allowed)(const Json&), const char* expected) const {
  const Json* value = find(key);
  if (value && !allowed(*value)) refuse(key, expected, value);
  return value;
}

void JsonLine::refuse(const char* key, const char* expected, const Json* found) const {
  fail(ErrorCode::kBadInput, where_, ": '", key, "': expected ", expected, ", found ", found ? json_for_errors(*found) : "nothing");
}

bool JsonLine::has(const char* key) const { return object_.contains(key); }

double JsonLine::number(const char* key) const {
  const Json* value = find(key, is_number_or_null, "a number or null");
  return value ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::optional<int64_t> JsonLine::count(const char* key) const {
  const Json* value = find(key, is_natural, kCount);
  return value ? std::optional(value->get<int64_t>()) : std::nullopt;
}

int64_t JsonLine::required_count(const char* key) const {
  const auto value = count(key);
  if (!value) refuse(key, kCount, nullptr);
  return *value;
}

std::string JsonLine::text(const char* key) const {
  const Json* value = find(key, is_text, "a string");
  return value ? value->get<std::string>() : "";
}

std::string JsonLine::required_text(const char* key) const {
  if (!find(key)) refuse(key, "a string", nullptr);
  return text(key);
}

const Json* JsonLine::array(const char* key) const {
  return find(key, [](const Json& value) { return value.is_array(); }, "a list");
}

const Json& JsonLine::required_array(const char* key) const {
  const Json* value = array(key);
  if (!value) refuse(key, "a list", nullptr);
  return *value;
}

const Json* JsonLine::object(const char* key) const {
  return find(key, [](const Json& value) { return value.is_object(); }, "an object");
}

std::vector<std::string> JsonLine::texts(const char* key) const {
  return values_of<std::string>(items(key), is_text, [&](const Json& value) { refuse(key, "strings", &value); });
}

std::vector<double> JsonLine::numbers(const char* key) const {
  const auto refuse_item = [&](const Json& value) { refuse(key, "numbers or null", &value); };
  return values_of<double>(items(key), is_number_or_null, refuse_item, number_or_nan);
}

std::vector<int64_t> JsonLine::counts(const char* key) const {
  return values_of<int64_t>(items(key), is_natural, [&](const Json& value) { refuse(key, "whole numbers from 0 up", &value); });
}

std::vector<std::vector<int64_t>> JsonLine::count_rows(const char* key) const {
  std::vector<std::vector<int64_t>> out;
  const auto refuse_item = [&](const Json& value) { refuse(key, "rows of whole numbers from 0 up", &value); };
  for (const Json& row : items(key)) {
    if (!row.is_array()) refuse_item(row);
    out.push_back(values_of<int64_t>(row, is_natural, refuse_item));
  }
  return out;
}

std::map<std::string, double> JsonLine::named_numbers(const char* key) const {
  std::map<std::string, double> out;
  const Json* named = object(key);
  if (!named) return out;
  for (const auto& [name, value] : named->items()) {
    if (!is_number_or_null(value)) refuse(key, "numbers or null", &value);
    const bool is_name =
        !name.empty() && name.size() <= 100 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos;
    if (!is_name) fail(ErrorCode::kBadInput, where_, ": '", key, "': a name is of a-z, 0-9, - and _, found ", quote_text(name));
    out[name] = number_or_nan(value);
  }
  return out;
}

const Json& JsonLine::items(const char* key) const {
  static const Json kNone = Json::array();
  const Json* list = array(key);
  return list ? *list : kNone;
}

std::string JsonLine::json(const char* key) const {
  const Json* value = find(key);
  return value ? value->dump() : "";
}

}  // namespace cohort
