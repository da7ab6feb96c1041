#pragma once
// Checked access to members of a JSON object from a file or another process: JsonFields, whose members are required, and JsonLine, whose
// members may be missing. Errors are Error(kBadInput) with place, member, what was expected and what was found.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {

/// Whether it is a whole number from 0 to 2^63-1; values that were not parsed may be stored as signed.
bool is_natural(const Json& value);
/// A value on one line, for error messages.
std::string json_for_errors(const Json& value);

class JsonFields {
 public:
  /// `where` stands before every refusal, e.g. "manifest.json: file \"a\"". Both must outlive the object.
  JsonFields(const Json& object, const std::string& where);

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, where_, ": ", parts...);
  }

  bool has(const char* key) const { return object_.contains(key); }
  const Json& member(const char* key) const;
  const std::string& text(const char* key) const;
  bool flag(const char* key) const;
  /// A finite number.
  double number(const char* key) const;
  int64_t natural(const char* key, int64_t most = std::numeric_limits<int64_t>::max()) const;
  /// Lists have at most `max_items` items.
  const Json& array(const char* key, size_t max_items) const;
  std::vector<std::string> texts(const char* key, size_t max_items) const;
  std::vector<double> numbers(const char* key, size_t max_items) const;
  std::vector<int64_t> naturals(const char* key, size_t max_items) const;

 private:
  [[noreturn]] void refuse_value(const char* key, const std::string& expected, const Json& found) const;
  const Json& member(const char* key, bool (*allowed)(const Json&), const std::string& expected) const;

  const Json& object_;
  const std::string& where_;
};

/// One object of a line of a file; null counts as missing.
class JsonLine {
 public:
  /// `where` ("metrics.jsonl:12") is the prefix of errors. Both must outlive the object. Error(kBadInput) when `object` is not a
  /// JSON object.
  JsonLine(const Json& object, const std::string& where);

  /// True also where the value is null.
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
  const Json* find(const char* key, bool (*allowed)(const Json&), const char* expected) const;
  const Json& items(const char* key) const;  // The list, or an empty one.
  [[noreturn]] void refuse(const char* key, const char* expected, const Json* found) const;

  const Json& object_;
  const std::string& where_;
};

}  // namespace cohort
