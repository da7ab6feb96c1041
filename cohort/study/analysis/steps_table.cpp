// A table of steps as people and programs write it: CSV, where empty lines do no harm and columns beside the two may have any names.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"

namespace cohort::study {
namespace {

constexpr size_t kMaxBytes = 16 << 20;

/// A field as an error shows it: a quoted one may hold line ends.
std::string shown(std::string_view field) {
  std::string text = printable(field);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

size_t column_of(const TableRow& header, const std::string& name, const std::string& path) {
  const auto found = std::find(header.fields.begin(), header.fields.end(), name);
  if (found == header.fields.end())
    fail(ErrorCode::kBadInput, path, ":", header.line, ": no column '", name,
         "'; the first line names the columns, such as batch_size,steps");
  return static_cast<size_t>(found - header.fields.begin());
}

double positive_number(const std::string& text, const char* what, const std::string& where) {
  const std::optional<double> value = parse_number(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    fail(ErrorCode::kBadInput, where, what, " '", shown(text), "' is not a positive number");
  return *value;
}

}  // namespace

std::vector<StepsPoint> read_steps_table(const std::string& path) {
  const std::string text = read_small_file(path, kMaxBytes);
  CsvRows rows{std::string_view(text)};
  TableRow header, row;
  if (!rows.skip_byte_order_mark() || !rows.next(header))
    fail(ErrorCode::kBadInput, path, " is empty; it needs a line batch_size,steps and one line for each batch size");
  if (!header.fault.empty()) fail(ErrorCode::kBadInput, path, ":", header.line, ": ", header.fault);
  const size_t batch_column = column_of(header, "batch_size", path), steps_column = column_of(header, "steps", path);
  std::vector<StepsPoint> points;
  while (rows.next(row)) {
    const std::string where = concat(path, ":", row.line, ": ");
    if (!row.fault.empty()) fail(ErrorCode::kBadInput, where, row.fault);
    if (row.fields.size() != header.fields.size())
      fail(ErrorCode::kBadInput, where, row.fields.size(), " columns, but the first line names ", header.fields.size());
    const double batch_size = positive_number(trim(row.fields[batch_column]), "batch_size", where);
    // R writes NA where there is no value.
    if (const std::string steps = trim(row.fields[steps_column]); !steps.empty() && steps != "NA")
      points.push_back({.batch_size = batch_size, .steps = positive_number(steps, "steps", where)});
  }
  std::sort(points.begin(), points.end(), [](const StepsPoint& a, const StepsPoint& b) { return a.batch_size < b.batch_size; });
  return points;
}

}  // namespace cohort::study
