#include "cohort/plan/search/json_instance.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {

JsonInstance::JsonInstance(const std::string& path, size_t most_bytes)
    : path_(path), json_(parse_strict_json(read_small_file(path, most_bytes), {.path = path})) {}

void JsonInstance::wrong(const std::string& place, const std::string& expected, const Value& found) const {
  const std::string text = found.dump(-1, ' ', true, Value::error_handler_t::replace);
  fail(ErrorCode::kBadInput, path_, ": ", place, ": expected ", expected, ", found ", text.size() > 60 ? text.substr(0, 60) + "..." : text);
}

void JsonInstance::wrong_value(const std::string& place, const char* key, const std::string& expected, const Value& found) const {
  wrong(concat(place, " \"", key, '"'), expected, found);
}

const JsonInstance::Value& JsonInstance::member(const Value& object, const char* key, const std::string& place) const {
  if (!object.is_object()) wrong(place, "an object", object);
  const auto at = object.find(key);
  if (at != object.end()) return *at;
  fail(ErrorCode::kBadInput, path_, ": ", place, ": expected \"", key, "\", found none");
}

double JsonInstance::number(const Value& object, const char* key, const std::string& place, double least, double most) const {
  return number_of(member(object, key, place), key, place, least, most);
}

double JsonInstance::number_of(const Value& value, const char* key, const std::string& place, double least, double most) const {
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most) return value.get<double>();
  const bool too_large = value.is_number() && value.get<double>() > most;
  wrong_value(place, key, too_large ? concat("a number of at most ", most) : concat("a finite number of at least ", least), value);
}

int JsonInstance::count(const char* key, int least, int most) const {
  const double value = number(json_, key, "the file");
  if (value != std::floor(value) || value < least || value > most)
    wrong(concat('"', key, '"'), concat("a whole number from ", least, " to ", most), json_[key]);
  return static_cast<int>(value);
}

int64_t JsonInstance::integer(const Value& object, const char* key, const std::string& place) const {
  const Value& value = member(object, key, place);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() >> 63))
    wrong_value(place, key, "a whole number", value);
  return value.get<int64_t>();
}

}  // namespace cohort
