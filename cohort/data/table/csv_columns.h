#pragma once
// What is read of a table's columns, learnt from its settings and its first file: which fields, as what, and which of them are targets.

#include <optional>
#include <string>
#include <vector>

#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/description.h"
#include "cohort/base/files/csv.h"

namespace cohort {

enum class TableTask { kClassification, kRegression, kLabels };

/// Whether the targets are several columns of 0 and 1: task=labels.
bool has_labels(const DataSettings& settings);
/// What else task= and the target's kind make of it; numbers become categories only where the settings say so. Error(kBadInput).
TableTask task_of_target(const DataSettings& settings, DataColumn& target);

class CsvColumns {
 public:
  /// Error(kBadInput) for a column that is not there, one that is meant twice, and where nothing is left to learn from.
  CsvColumns(const DataSettings& settings, const CsvReader& reader);

  /// False once nothing is left to learn.
  bool learn_kinds(const TableRow& row);
  /// With their kinds, in the order of fields(); the targets are some of them.
  std::vector<DataColumn> columns(bool one_hot) const;
  const std::vector<size_t>& fields() const { return fields_; }
  /// Their places among the fields, in the order in which the settings name them.
  std::vector<size_t> targets() const;

 private:
  size_t position(const std::string& name) const;
  void find_targets(const DataSettings& settings);

  std::string path_;
  std::vector<std::string> header_;
  std::vector<size_t> targets_, fields_;
  std::vector<std::optional<bool>> kinds_;  // Of each field: whether it is a category.
};

}  // namespace cohort
