#pragma once
// A table in memory: the columns (their kinds and which are targets, from the settings and the first file), the rows, and the samples.

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

/// Rows x input columns; a category is the index of its value.
struct Table {
  std::vector<DataColumn> columns;
  std::vector<double> cells;
  std::vector<double> targets;  ///< Per row the class index, the number, or all labels.
};

/// Reads a field as a number, or as the index of its value. Returns an error text, or "".
std::string read_cell(const DataColumn& column, const std::string& field, double& cell);
/// Writes the column.width() inputs of a cell.
void write_cell(const DataColumn& column, double cell, float* out);

/// The rows `rows` of `table`.
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

/// Whether task=labels: several target columns of 0 and 1.
bool has_labels(const DataSettings& settings);
/// The task by task= and the target's kind; numbers become classes only with task=classification. Error(kBadInput).
TableTask task_of_target(const DataSettings& settings, DataColumn& target);

class CsvColumns {
 public:
  /// Error(kBadInput) for missing or contradictory columns, or without input columns.
  CsvColumns(const DataSettings& settings, const CsvReader& reader);

  /// False once all kinds are known.
  bool learn_kinds(const TableRow& row);
  /// The columns in the order of fields(), targets included.
  std::vector<DataColumn> columns(bool one_hot) const;
  const std::vector<size_t>& fields() const { return fields_; }
  /// Positions of the targets among the fields, in the order of the settings.
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
