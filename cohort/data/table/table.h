#pragma once
// A table in memory: what was read of its rows, and the samples that are made of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/source/description.h"
#include "cohort/data/source/source.h"

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
class TableSource : public DataSource {
 public:
  TableSource(std::shared_ptr<const Table> table, DataDescription description, std::vector<int64_t> rows);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return std::ssize(rows_); }
  void read(std::span<const int64_t> indices, Batch& batch) const override;
  DataDescription describe() const override { return description_; }

 private:
  std::shared_ptr<const Table> table_;
  DataDescription description_;
  DataShape shape_;
  std::vector<int64_t> rows_;
};

struct MeanAndDeviation {
  double mean = 0, deviation = 1;
};
/// Of the population `number(row)` over `rows`, summed in their order; the deviation is 1 where all are alike. Not finite where the numbers
/// are too large to be summed.
MeanAndDeviation mean_and_deviation(const std::vector<int64_t>& rows, const std::function<double(int64_t)>& number);

}  // namespace cohort
