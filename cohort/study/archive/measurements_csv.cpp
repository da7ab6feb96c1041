// Usual lines are parsed directly, in a fraction of the time of the general CSV reader (base/files/csv.h), which reads all others.
#include "cohort/study/archive/measurements_csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

constexpr std::array<const char*, kNumMetrics> kColumns = {
    "train/cross_entropy_error", "train/classification_error", "train/average_precision",
    "val/cross_entropy_error",   "val/classification_error",   "val/average_precision",
    "test/cross_entropy_error",  "test/classification_error",  "test/average_precision"};
constexpr int kStepColumn = -1, kUnknownColumn = -2;
constexpr size_t kMaxColumns = 1000;
constexpr double kLargestStep = 9007199254740992.0;  // 2^53.

template <typename Number>
void append(std::string& out, Number value) {
  std::array<char, 32> digits{};
  out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b; });
}

std::optional<double> parse_field(std::string_view field) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (field.empty() || equals_ignoring_case(field, "nan")) return std::numeric_limits<double>::quiet_NaN();
  if (const auto number = parse_number(field)) return number;
  const bool is_negative = field.starts_with('-');
  field.remove_prefix(is_negative || field.starts_with('+') ? 1 : 0);
  if (!equals_ignoring_case(field, "inf") && !equals_ignoring_case(field, "infinity")) return std::nullopt;
  return is_negative ? -kInfinity : kInfinity;
}

/// The content of each column: a Metric, kStepColumn or kUnknownColumn.
std::vector<int> parse_header(const std::vector<std::string>& names, const std::string& path) {
  std::vector<int> columns;
  for (const std::string& name : names) {
    if (columns.size() == kMaxColumns) fail(ErrorCode::kBadInput, path, ":1: more than ", kMaxColumns, " columns");
    const auto found = std::find(kColumns.begin(), kColumns.end(), name);
    const int column = name == "step" ? kStepColumn : found == kColumns.end() ? kUnknownColumn : static_cast<int>(found - kColumns.begin());
    if (column != kUnknownColumn && std::find(columns.begin(), columns.end(), column) != columns.end())
      fail(ErrorCode::kBadInput, path, ":1: column ", quote_text(name), " comes twice");
    columns.push_back(column);
  }
  if (std::find(columns.begin(), columns.end(), kStepColumn) == columns.end())
    fail(ErrorCode::kBadInput, path, ":1: no column \"step\" in ", quote_text(join(names, ",")));
  return columns;
}

/// Parses a row that parse_plain_line() does not, or reports its error.
Measurement parse_row(const TableRow& row, const std::vector<int>& columns, const std::string& path) {
  const std::string where = concat(path, ':', row.line);
  if (!row.fault.empty()) fail(ErrorCode::kBadInput, where, ": ", row.fault);
  if (row.fields.size() != columns.size())
    fail(ErrorCode::kBadInput, where, ": ", row.fields.size(), " fields, but the header has ", columns.size());
  Measurement measurement;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] == kUnknownColumn) continue;
    const std::string& field = row.fields[i];
    const auto value = parse_field(field);
    if (!value) fail(ErrorCode::kBadInput, where, ": ", quote_text(field), " is not a number");
    if (columns[i] != kStepColumn) {
      measurement.values[columns[i]] = *value;
    } else if (*value >= 0 && *value <= kLargestStep && *value == std::floor(*value)) {
      measurement.step = static_cast<int64_t>(*value);  // Also "1000.0", as some tools write whole numbers.
    } else {
      fail(ErrorCode::kBadInput, where, ": step ", quote_text(field), " is not a whole number from 0 up");
    }
  }
  return measurement;
}

/// Parses the usual line: as many fields as columns, each empty or a finite number, none quoted. False for any other line. Archives have
/// millions of usual lines.
bool parse_plain_line(std::string_view line, const std::vector<int>& columns, Measurement& measurement) {
  const char *at = line.data(), *const end = at + line.size();
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ',')) return false;
    if (columns[i] == kUnknownColumn) {
      while (at != end && *at != ',' && *at != '"') ++at;
      continue;
    }
    double value = std::numeric_limits<double>::quiet_NaN();
    if (at != end && *at != ',') {
      const auto [behind, error] = std::from_chars(at, end, value);
      if (error != std::errc() || !std::isfinite(value)) return false;
      at = behind;
    }
    if (columns[i] != kStepColumn) {
      measurement.values[columns[i]] = value;
    } else {
      if (!(value >= 0 && value <= kLargestStep && value == std::floor(value))) return false;
      measurement.step = static_cast<int64_t>(value);
    }
  }
  return at == end;
}

/// Calls `take` with every row's measurement and line number, until it returns false.
template <typename Take>
bool for_each_row(std::string_view text, const std::string& path, const Take& take) {
  TableRow row;
  CsvRows header(text, 1, true);
  header.next(row);
  if (!row.fault.empty()) fail(ErrorCode::kBadInput, path, ":1: ", row.fault);
  const std::vector<int> columns = parse_header(row.fields, path);
  int64_t number = header.line();
  for (text.remove_prefix(header.offset()); !text.empty();) {
    const int64_t line_number = number++;
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end), rest = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() && rest.empty()) break;  // A blank last line is ignored.
    Measurement measurement;
    if (!parse_plain_line(line, columns, measurement)) {
      CsvRows rows(text, line_number, true);
      rows.next(row);
      measurement = parse_row(row, columns, path);
      rest = text.substr(rows.offset());
      number = rows.line();
    }
    text = rest;
    if (!take(measurement, line_number)) return false;
  }
  return true;
}

}  // namespace

const char* csv_column(Metric metric) { return kColumns.at(metric); }

std::string to_csv(const std::vector<Measurement>& measurements, const std::vector<Metric>& metrics) {
  std::string out = "step";
  for (const Metric metric : metrics) out += concat(',', csv_column(metric));
  out += '\n';
  for (const Measurement& measurement : measurements) {
    append(out, measurement.step);
    for (const Metric metric : metrics) {
      out += ',';
      if (const double value = measurement.values[metric]; !std::isnan(value)) append(out, value);
    }
    out += '\n';
  }
  return out;
}

bool read_rising_csv(std::string_view text, const std::string& path, const std::function<void(const Measurement&)>& take) {
  int64_t last_step = -1;
  return for_each_row(text, path, [&](const Measurement& measurement, int64_t) {
    if (measurement.step <= last_step) return false;
    last_step = measurement.step;
    take(measurement);
    return true;
  });
}

std::vector<Measurement> parse_csv(std::string_view text, const std::string& path) {
  struct Row {
    Measurement measurement;
    int64_t line;
  };
  std::vector<Row> rows;
  for_each_row(text, path, [&](const Measurement& measurement, int64_t number) {
    rows.push_back({measurement, number});
    return true;
  });
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.measurement.step < b.measurement.step; });
  std::vector<Measurement> measurements;
  measurements.reserve(rows.size());
  for (const Row& row : rows) {
    if (!measurements.empty() && measurements.back().step == row.measurement.step)
      fail(ErrorCode::kBadInput, path, ':', row.line, ": step ", row.measurement.step, " comes twice");
    measurements.push_back(row.measurement);
  }
  return measurements;
}

}  // namespace cohort::study
