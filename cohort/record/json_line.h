#pragma once
// Typed access to the keys of one JSON object that came from a line of a file; errors name file, line, key, what was expected and what was
// found.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

class JsonLine {
 public:
  /// `where` ("metrics.jsonl:12") stands in front of errors. Both must outlive the object. Error(kBadInput) when `object` is no JSON
  /// object.
  JsonLine(const Json& object, const std::string& where);

  /// Also where it is null.
  bool has(const char* key) const;
  /// NaN where the key is missing or null.
  double number(const char* key) const;
  /// Nullopt where the key is missing or null. Negative numbers are refused: counts, steps and bytes are all that the lines hold.
  std::optional<int64_t> count(const char* key) const;
  int64_t required_count(const char* key) const;
  /// "" where the key is missing or null.
  std::string text(const char* key) const;
  std::string required_text(const char* key) const;
  /// Null where the key is missing or null.
  const Json* array(const char* key) const;
  const Json& required_array(const char* key) const;
  const Json* object(const char* key) const;
  /// Lists of strings, of numbers (null is NaN), of whole numbers from 0 up, of rows of these; empty where the key is missing or null.
  std::vector<std::string> texts(const char* key) const;
  std::vector<double> numbers(const char* key) const;
  std::vector<int64_t> counts(const char* key) const;
  std::vector<std::vector<int64_t>> count_rows(const char* key) const;
  /// Of an object of numbers (null is NaN) whose names can be those of files; empty where the key is missing or null.
  std::map<std::string, double> named_numbers(const char* key) const;
  /// Any value, as JSON; "" where the key is missing or null.
  std::string json(const char* key) const;
  const std::string& where() const { return where_; }

 private:
  const Json* find(const char* key) const;
  [[noreturn]] void refuse(const char* key, const char* expected, const Json* found) const;

  const Json& object_;
  const std::string& where_;
};

}  // namespace cohort
