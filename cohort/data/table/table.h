#pragma once
// A table in memory: what is read of its columns, learnt from its settings and its first file (which fields, as what, and which of them are
// targets), what was read of its rows, and the samples that are made of it.

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/files/csv.h"
#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/description.h"
#include "cohort/data/source/source.h"
#include "cohort/data/source/split.h"

namespace cohort {

/// Rows x columns that the model reads; a category is the index of its value.
struct Table {
  std::vector<DataColumn> columns;
  std::vector<double> cells;
  std::vector<double> targets;  ///< A class's index, or the number, of each row; or its labels, as many as the description has.
};

/// A field as what it is in its column: the number, or the index of its value. Error text where it is neither, else "".
std::string read_cell(const DataColumn& column, const std::string& field, double& cell);
/// What the model gets of it: column.width() floats.
void write_cell(const DataColumn& column, double cell, float* out);

/// The rows `rows` of `table`, in that order.
class TableSource : public DescribedSource {
 public:
  TableSource(std::shared_ptr<const Table> table, DataDescription description, std::vector<int64_t> rows)
      : DescribedSource(std::move(description), std::move(rows)), table_(std::move(table)) {}
  void read(std::span<const int64_t> indices, Batch& batch) const override;

 private:
  std::shared_ptr<const Table> table_;
};

struct MeanAndDeviation {
  double mean = 0, deviation = 1;
};
/// Mean and deviation of a population of `count` numbers, which `each` hands one by one to the function that it is given; the deviation is
/// 1 where all are alike. Not finite where the numbers are too large to be summed.
template <typename Each>
MeanAndDeviation mean_and_deviation(double count, const Each& each) {
  MeanAndDeviation out;
  double sum = 0, squares = 0;
  each([&](double number) { sum += number; });
  out.mean = sum / count;
  each([&](double number) { squares += (number - out.mean) * (number - out.mean); });
  const double deviation = std::sqrt(squares / count);
  // Numbers that are all alike differ from their mean by rounding alone.
  if (!(deviation <= 1e-12 * std::abs(out.mean)) && deviation > 0) out.deviation = deviation;
  return out;
}

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
