#pragma once
// Planner instances in JSON: the file, and values in it that must be there and be of a kind. Internal to this room.

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace cohort {

/// What an error shows of a wrong value: the value ("nodes[1] "id": expected a whole number, found 1.5"), or, as files of Piper have it,
/// its type and the key among what was expected ("node 1: expected id as an integer, found "string"").
enum class JsonWords { kValue, kType };

/// Every refusal is Error(kBadInput): file, place, what was expected, what was found.
class JsonInstance {
 public:
  using Value = nlohmann::json;
  static constexpr double kMostValue = std::numeric_limits<double>::max();

  /// Reads all of it. Error(kBadInput) for more than `most_bytes`, for what is no JSON, or is nested too deep.
  JsonInstance(const std::string& path, size_t most_bytes, JsonWords words = JsonWords::kValue);

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
  JsonWords words_;
  Value json_;
};

}  // namespace cohort
