// The CSV tables of steps and step times: docs/formats/steps_curve.md. Empty lines and additional columns are ignored.
#include <algorithm>
#include <limits>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {
namespace {

const std::vector<std::string> kCurveColumns = {"batch_size", "steps",       "steps_low",      "steps_high",  "trial",       "step_before",
                                                "num_kept",   "num_reached", "num_infeasible", "num_stopped", "num_unknown", "goal"};
const std::vector<std::string> kTimeColumns = {"batch_size", "num_workers", "step_seconds", "step_seconds_low", "step_seconds_high"};

std::string bound_text(const std::optional<double>& value) { return value ? number_text(*value) : ""; }

std::vector<CsvRow> read_rows(const std::string& path, const std::vector<std::string>& columns) {
  std::vector<CsvRow> rows = read_csv(path);
  if (rows.empty()) fail(ErrorCode::kBadInput, path, ": has no rows; expected a header with ", join(columns, ","), " and a line per row");
  return rows;
}

int64_t read_whole(const CsvRow& row, const std::string& column, int64_t minimum) {
  const std::optional<int64_t> value = parse_integer(row.text(column));
  if (!value || *value < minimum) row.refuse(column, concat("a whole number from ", minimum));
  return *value;
}

/// At least 0, or infinite; none where the field is empty.
std::optional<double> read_bound(const CsvRow& row, const std::string& column) {
  const std::string text = row.text(column);
  if (text.empty()) return std::nullopt;
  const std::optional<double> value = text == "inf" ? std::numeric_limits<double>::infinity() : parse_number(text);
  if (!value || *value < 0) row.refuse(column, "a number, inf or nothing");
  return value;
}

}  // namespace

std::vector<StepsPoint> read_steps_table(const std::string& path) {
  std::vector<StepsPoint> points;
  for (const CsvRow& row : read_rows(path, {"batch_size", "steps"})) {
    const double batch_size = row.positive("batch_size");
    // R writes NA where there is no value.
    if (const std::string steps = row.text("steps"); !steps.empty() && steps != "NA")
      points.push_back({.batch_size = batch_size, .steps = row.positive("steps")});
  }
  std::sort(points.begin(), points.end(), [](const StepsPoint& a, const StepsPoint& b) { return a.batch_size < b.batch_size; });
  return points;
}

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
  for (const CsvRow& line : read_rows(path, kCurveColumns)) {
    StepsToResult row;
    row.batch_size = read_whole(line, "batch_size", 1);
    if (!steps.empty() && row.batch_size <= steps.back().batch_size)
      line.refuse("batch_size", concat("more than the ", steps.back().batch_size, " of the row before"));
    if (!line.text("steps").empty()) {
      row.steps = read_whole(line, "steps", 0);
      row.trial_id = read_whole(line, "trial", 0);
      row.step_before = read_whole(line, "step_before", 0);
    }
    row.low = read_bound(line, "steps_low");
    row.high = read_bound(line, "steps_high");
    row.num_kept = read_whole(line, "num_kept", 0);
    row.num_reached = read_whole(line, "num_reached", 0);
    row.num_infeasible = read_whole(line, "num_infeasible", 0);
    row.num_stopped = read_whole(line, "num_stopped", 0);
    row.num_unknown = read_whole(line, "num_unknown", 0);
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
  constexpr int64_t kMaxWorkers = 1 << 20;
  std::map<std::pair<int64_t, int>, StepTime> times;
  for (const CsvRow& line : read_rows(path, kTimeColumns)) {
    const int64_t num_workers = read_whole(line, "num_workers", 1);
    if (num_workers > kMaxWorkers) line.refuse("num_workers", concat("at most ", kMaxWorkers));
    const StepTime time{.batch_size = read_whole(line, "batch_size", 1),
                        .num_workers = static_cast<int>(num_workers),
                        .seconds = line.positive("step_seconds"),
                        .low = line.positive("step_seconds_low"),
                        .high = line.positive("step_seconds_high")};
    if (!times.emplace(std::pair(time.batch_size, time.num_workers), time).second)
      line.refuse("batch_size", concat("a value that no other row with ", time.num_workers, " workers has"));
  }
  std::vector<StepTime> sorted;
  for (const auto& [key, time] : times) sorted.push_back(time);
  return sorted;
}

}  // namespace cohort::study
