// A table of steps as people and programs write it: CSV, where empty lines do no harm and columns beside the two may have any names.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/spec.h"

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

// steps_curve.csv and step_times.csv: docs/formats/steps_curve.md.
namespace {

std::string bound_text(const std::optional<double>& value) { return value ? number_text(*value) : ""; }

/// The fields of one line, by column name.
class Line {
 public:
  Line(const std::string& path, size_t number, const std::vector<std::string>& names, const std::string& text)
      : path_(path), number_(number) {
    const std::vector<std::string> fields = split(text, ',');
    if (fields.size() != names.size()) refuse(concat(fields.size(), " values; the header has ", names.size()));
    for (size_t column = 0; column < names.size(); ++column) fields_[names[column]] = trim(fields[column]);
  }

  [[noreturn]] void refuse(const std::string& what) const { fail(ErrorCode::kBadInput, path_, ":", number_, ": ", what); }
  const std::string& text(const std::string& name) const { return fields_.at(name); }
  int64_t integer(const std::string& name, int64_t minimum) const {
    const std::optional<int64_t> value = parse_integer(text(name));
    if (!value || *value < minimum) refuse(concat(name, " is '", printable(text(name)), "'; expected a whole number from ", minimum));
    return *value;
  }
  /// At least 0, or infinite; none where it is left out.
  std::optional<double> bound(const std::string& name) const {
    if (text(name).empty()) return std::nullopt;
    const std::optional<double> value = text(name) == "inf" ? std::numeric_limits<double>::infinity() : parse_number(text(name));
    if (!value || *value < 0) refuse(concat(name, " is '", printable(text(name)), "'; expected a number, inf or nothing"));
    return value;
  }
  double seconds(const std::string& name) const {
    const std::optional<double> value = parse_number(text(name));
    if (!value || *value <= 0) refuse(concat(name, " is '", printable(text(name)), "'; expected a number above 0"));
    return *value;
  }

 private:
  const std::string& path_;
  size_t number_;
  std::map<std::string, std::string> fields_;
};

/// One Line for each line below the header, which must name at least `columns`, in any order. Empty lines are left out.
std::vector<Line> read_lines(const std::string& path, const std::vector<std::string>& columns) {
  std::vector<Line> lines;
  std::vector<std::string> names;
  size_t number = 0;
  for (const std::string& text : split(read_small_file(path, kMaxBytes), '\n')) {
    ++number;
    if (trim(text).empty()) continue;
    if (!names.empty()) {
      lines.emplace_back(path, number, names, text);
      continue;
    }
    for (const std::string& name : split(text, ',')) names.push_back(trim(name));
    for (const std::string& column : columns)
      if (std::find(names.begin(), names.end(), column) == names.end())
        fail(ErrorCode::kBadInput, path, ":", number, ": no column '", column, "'; expected a header with ", join(columns, ","));
  }
  if (names.empty()) fail(ErrorCode::kBadInput, path, ": is empty; expected a header with ", join(columns, ","));
  return lines;
}

const std::vector<std::string> kCurveColumns = {"batch_size", "steps",       "steps_low",      "steps_high",  "trial",       "step_before",
                                                "num_kept",   "num_reached", "num_infeasible", "num_stopped", "num_unknown", "goal"};
const std::vector<std::string> kTimeColumns = {"batch_size", "num_workers", "step_seconds", "step_seconds_low", "step_seconds_high"};

}  // namespace

void write_steps_curve(const std::string& path, const Analysis& analysis) {
  std::string text = join(kCurveColumns, ",") + "\n";
  for (const StepsToResult& row : analysis.steps)
    text +=
        concat(row.batch_size, ",", row.steps ? std::to_string(*row.steps) : "", ",", bound_text(row.low), ",", bound_text(row.high), ",",
               row.steps ? std::to_string(row.trial_id) : "", ",", row.steps ? std::to_string(row.step_before) : "", ",", row.num_kept, ",",
               row.num_reached, ",", row.num_infeasible, ",", row.num_stopped, ",", row.num_unknown, ",", analysis.goal.text(), "\n");
  write_file_atomically(path, text);
}

std::vector<StepsToResult> read_steps_curve(const std::string& path, std::string* goal) {
  std::vector<StepsToResult> steps;
  for (const Line& line : read_lines(path, kCurveColumns)) {
    StepsToResult row;
    row.batch_size = line.integer("batch_size", 1);
    if (!steps.empty() && row.batch_size <= steps.back().batch_size)
      line.refuse(concat("batch size ", row.batch_size, " after ", steps.back().batch_size, "; they must rise"));
    if (!line.text("steps").empty()) {
      row.steps = line.integer("steps", 0);
      row.trial_id = line.integer("trial", 0);
      row.step_before = line.integer("step_before", 0);
    }
    row.low = line.bound("steps_low");
    row.high = line.bound("steps_high");
    row.num_kept = line.integer("num_kept", 0);
    row.num_reached = line.integer("num_reached", 0);
    row.num_infeasible = line.integer("num_infeasible", 0);
    row.num_stopped = line.integer("num_stopped", 0);
    row.num_unknown = line.integer("num_unknown", 0);
    if (goal && steps.empty()) *goal = line.text("goal");
    steps.push_back(row);
  }
  return steps;
}

void write_step_times(const std::string& path, const std::vector<StepTime>& times) {
  std::string text = join(kTimeColumns, ",") + "\n";
  for (const StepTime& time : times)
    text += concat(time.batch_size, ",", time.num_workers, ",", number_text(time.seconds), ",", number_text(time.low), ",",
                   number_text(time.high), "\n");
  write_file_atomically(path, text);
}

std::vector<StepTime> read_step_times(const std::string& path) {
  std::map<std::pair<int64_t, int>, StepTime> times;
  for (const Line& line : read_lines(path, kTimeColumns)) {
    const int64_t num_workers = line.integer("num_workers", 1);
    if (num_workers > 1 << 20) line.refuse(concat(num_workers, " workers are more than anybody has"));
    const StepTime time{.batch_size = line.integer("batch_size", 1),
                        .num_workers = static_cast<int>(num_workers),
                        .seconds = line.seconds("step_seconds"),
                        .low = line.seconds("step_seconds_low"),
                        .high = line.seconds("step_seconds_high")};
    if (!times.emplace(std::pair(time.batch_size, time.num_workers), time).second)
      line.refuse(concat("batch size ", time.batch_size, " on ", time.num_workers, " workers a second time"));
  }
  std::vector<StepTime> sorted;
  for (const auto& [key, time] : times) sorted.push_back(time);
  return sorted;
}

}  // namespace cohort::study
