#pragma once
// Parses `--model NAME:key=value,...`, and typed access to its options for model factories. Torch-free.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

struct ModelSpecification {
  std::string name;
  std::map<std::string, std::string> values;
};
/// Error(kBadInput) unless `text` is NAME or NAME:key=value,...
COHORT_API ModelSpecification parse_model(const std::string& text);

/// The options of a model, and the shape of the data. Getters mark their key as known; check_all_used() throws Error(kBadInput) for other
/// keys.
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
