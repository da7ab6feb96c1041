#pragma once
// Planner instances in JSON: the file, and values in it that must be there and be of a kind.

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// Every refusal is Error(kBadInput): file, place, what was expected, what was found (nodes[1] "id": expected a whole number, found 1.5).
class COHORT_PROGRAM_API JsonInstance {
 public:
  using Value = nlohmann::json;
  static constexpr double kMostValue = std::numeric_limits<double>::max();

  /// Reads all of it. Error(kBadInput) for more than `most_bytes`, for what is no JSON, or is nested too deep.
  JsonInstance(const std::string& path, size_t most_bytes);

  const Value& file() const { return json_; }
  const std::string& path() const { return path_; }

  [[noreturn]] void wrong(const std::string& place, const std::string& expected, const Value& found) const;

  /// The value of a key that must be there; refuses an `object` that is none.
  const Value& member(const Value& object, const char* key, const std::string& place) const;
  /// From `least` to `most`.
  double number(const Value& object, const char* key, const std::string& place, double least = 0, double most = kMostValue) const;
  double number_of(const Value& value, const char* key, const std::string& place, double least = 0, double most = kMostValue) const;
  /// Of the file itself: a whole number.
  int count(const char* key, int least, int most) const;
  int64_t integer(const Value& object, const char* key, const std::string& place) const;

 private:
  [[noreturn]] void wrong_value(const std::string& place, const char* key, const std::string& expected, const Value& found) const;

  std::string path_;
  Value json_;
};

}  // namespace cohort
