#pragma once
// `PATH[,key=value...]`, as --data csv:, folder:, npy: and safetensors: have it after the colon.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

class DataSettings {
 public:
  /// The path ends where the first `,key=` begins. Error(kBadInput) for a path that is empty, a key that is none of `known`, one without a
  /// value, or one that is given twice. `kind` is the data's name, "csv".
  DataSettings(const std::string& kind, const std::string& text, const std::vector<std::string>& known);

  const std::string& path() const { return path_; }
  /// "csv:FILE", for messages.
  const std::string& what() const { return what_; }
  bool has(const std::string& key) const { return values_.contains(key); }
  std::string text(const std::string& key, const std::string& fallback = "") const;
  /// Error(kBadInput) where it is none of `allowed`.
  std::string one_of(const std::string& key, const std::vector<std::string>& allowed, const std::string& fallback) const;
  int64_t integer(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const;
  /// Names joined by '+'; none where it is not given.
  std::vector<std::string> names(const std::string& key) const;

 private:
  std::string what_, path_;
  std::map<std::string, std::string> values_;
};

/// What decides which samples are kept for validation: seed=N, else options.seed. Error(kBadInput) for settings of that choice where
/// `has_own_validation`, the samples for validation standing somewhere by themselves (`where`), leaves no choice.
uint64_t seed_of_split(const DataSettings& settings, const DataOptions& options, bool has_own_validation, const std::string& where);

}  // namespace cohort
