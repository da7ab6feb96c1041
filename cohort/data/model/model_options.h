#pragma once
// What `--model NAME:key=value,...` says: its words, and what they say of a model besides its name. Torch-free: factories read it, and
// those who know a model by its shapes alone.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// As words.
struct ModelSpecification {
  std::string name;
  std::map<std::string, std::string> values;
};
/// Error(kBadInput) for what is neither NAME nor NAME:key=value,...
COHORT_API ModelSpecification parse_model(const std::string& text);

/// The `key=value` settings of `--model NAME:key=value,...`, and what the data looks like. Every getter marks its key as known; a key that
/// no getter asked for is an Error(kBadInput) that lists the known ones (check_all_used).
class COHORT_API ModelOptions {
 public:
  ModelOptions(DataShape data, std::map<std::string, std::string> values) : data_(std::move(data)), values_(std::move(values)) {}

  const DataShape& data() const { return data_; }
  int64_t integer(const std::string& key, int64_t fallback, int64_t minimum = 1, int64_t maximum = INT64_C(1) << 40) const;
  double number(const std::string& key, double fallback, double minimum, double maximum) const;
  std::string text(const std::string& key, const std::string& fallback, const std::vector<std::string>& allowed = {}) const;
  void check_all_used(const std::string& model) const;

 private:
  const std::string* find(const std::string& key) const;  ///< Marks the key as known; null when it was not given.

  DataShape data_;
  std::map<std::string, std::string> values_;
  mutable std::vector<std::string> known_;
};

}  // namespace cohort
