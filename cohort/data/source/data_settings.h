#pragma once
// Parses `PATH[,key=value...]` of --data csv:, folder:, npy:, safetensors: and synthetic: (whose path is a shape).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/data/source/source.h"

namespace cohort {

class DataSettings {
 public:
  /// The path ends at the first `,key=`. Error(kBadInput) for an empty path, a key other than `known`, a missing value, or a duplicate.
  /// `kind`: "csv" and so on.
  DataSettings(const std::string& kind, const std::string& text, const std::vector<std::string>& known);

  const std::string& path() const { return path_; }
  /// "csv:FILE", for messages.
  const std::string& what() const { return what_; }
  /// Error(kBadInput) "data csv:FILE: PARTS".
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, "data ", what_, ": ", parts...);
  }
  bool has(const std::string& key) const { return values_.contains(key); }
  std::string text(const std::string& key, const std::string& fallback = "") const;
  /// Error(kBadInput) for a value other than `allowed`.
  std::string one_of(const std::string& key, const std::vector<std::string>& allowed, const std::string& fallback) const;
  int64_t integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const;
  double number(const std::string& key, double fallback, double minimum, double maximum) const;
  /// Names separated by '+'; empty if not given.
  std::vector<std::string> names(const std::string& key) const;

 private:
  std::string what_, path_;
  std::map<std::string, std::string> values_;
};

/// The seed of the split into training and validation: seed=N, else options.seed. Error(kBadInput) for settings of the split where
/// `has_own_validation`: the validation samples are separate data (`where`).
uint64_t seed_of_split(const DataSettings& settings, const DataOptions& options, bool has_own_validation, const std::string& where);

}  // namespace cohort
