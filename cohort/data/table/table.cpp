#include "cohort/data/table/table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/split.h"

namespace cohort {

std::string read_cell(const DataColumn& column, const std::string& field, double& cell) {
  if (!column.is_category) {
    const auto number = parse_number(field);
    if (number) cell = *number;
    return number ? "" : concat(column.name, field.empty() ? " is empty" : " is '" + printable(field) + "'", ", expected a number");
  }
  const auto found = std::find(column.values.begin(), column.values.end(), field);
  cell = static_cast<double>(found - column.values.begin());
  if (found != column.values.end()) return "";
  return concat(column.name, " is '", printable(field), "', expected one of the ", column.values.size(), " values that the training had",
                field.size() > 2 ? did_you_mean(field, column.values) : "");
}

void write_cell(const DataColumn& column, double cell, float* out) {
  if (!column.is_category) {
    *out = static_cast<float>((cell - column.mean) / column.deviation);
  } else if (!column.one_hot) {
    *out = static_cast<float>(cell);
  } else {
    std::fill_n(out, column.values.size(), 0.0F);
    out[static_cast<size_t>(cell)] = 1;
  }
}

MeanAndDeviation mean_and_deviation(const std::vector<int64_t>& rows, const std::function<double(int64_t)>& number) {
  MeanAndDeviation out;
  const auto count = static_cast<double>(rows.size());
  double sum = 0, squares = 0;
  for (const int64_t row : rows) sum += number(row);
  out.mean = sum / count;
  for (const int64_t row : rows) squares += (number(row) - out.mean) * (number(row) - out.mean);
  // Numbers that are all alike differ from their mean by rounding alone.
  const double deviation = std::sqrt(squares / count);
  if (!(deviation <= 1e-12 * std::abs(out.mean)) && deviation > 0) out.deviation = deviation;
  return out;
}

TableSource::TableSource(std::shared_ptr<const Table> table, DataDescription description, std::vector<int64_t> rows)
    : table_(std::move(table)),
      description_(std::move(description)),
      shape_{DataShape::Kind::kImage,  description_.shape,      description_.num_outputs,
             description_.class_names, description_.regression, description_.labels},
      rows_(std::move(rows)) {}

void TableSource::read(std::span<const int64_t> indices, Batch& batch) const {
  resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
  const std::vector<DataColumn>& columns = description_.columns;
  float* out = batch.values.data();
  for (size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], num_samples());
    const auto row = static_cast<size_t>(rows_[static_cast<size_t>(indices[i])]);
    const double* cell = table_->cells.data() + row * columns.size();
    for (const DataColumn& column : columns) {
      write_cell(column, *cell++, out);
      out += column.width();
    }
    if (description_.labels) {
      const auto num_labels = static_cast<size_t>(description_.num_outputs);
      std::copy_n(table_->targets.data() + row * num_labels, num_labels, batch.numbers.data() + i * num_labels);
      continue;
    }
    const double target = table_->targets[row];
    if (description_.regression)
      batch.numbers[i] = static_cast<float>((target - description_.targets[0].mean) / description_.targets[0].deviation);
    else batch.targets[i] = static_cast<int64_t>(target);
  }
}

}  // namespace cohort
