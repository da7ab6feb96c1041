// Reads the curve of a study or a file, and excludes batch sizes that bring no speed.
//
// The flat point is that of find_regimes(): the smallest batch size B* with S <= 1.2 x min S, unless that is the largest. Above it a batch
// size is kept only where its steps fall significantly: both intervals are known and the upper end of the larger batch's steps is below the
// lower end at B*. The others cost samples without a reliable gain.
#include "cohort/study/goal_curve.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/store/store.h"

namespace cohort::study {
namespace {

constexpr int64_t kMaxBatch = 1'000'000'000;  // The limit of --global-batch.

bool falls_significantly(const StepsToResult& from, const StepsToResult& to) {
  return from.low && from.high && to.low && to.high && *to.high < *from.low;
}

GoalSteps point_of(const StepsToResult& row) {
  const auto steps = static_cast<double>(*row.steps);
  return {row.batch_size, steps, row.low.value_or(steps), row.high.value_or(steps)};
}

std::vector<StepsToResult> read_two_columns(const std::string& path) {
  std::vector<StepsToResult> rows;
  std::set<int64_t> met;
  for (const CsvRow& row : read_csv(path)) {
    const int64_t batch = row.count("batch_size");
    const double steps = row.positive("steps");
    if (batch > kMaxBatch) row.refuse("batch_size", concat("at most ", kMaxBatch));
    if (steps < 1 || steps > 1e15) row.refuse("steps", "1 to 1e15 steps");
    if (!met.insert(batch).second) row.refuse("batch_size", "a value that is in no earlier row");
    rows.push_back({.batch_size = batch, .steps = static_cast<int64_t>(std::llround(steps)), .low = {}, .high = {}});
  }
  return rows;
}

}  // namespace

GoalCurve goal_curve(std::string source, std::string goal, const std::vector<StepsToResult>& rows) {
  GoalCurve curve{.source = std::move(source), .goal = std::move(goal), .rows = {}, .flat_from = {}, .left_out = {}};
  std::vector<StepsPoint> points;
  for (const StepsToResult& row : rows) {
    if (row.steps.value_or(0) < 1) continue;
    if (row.batch_size > kMaxBatch) fail(ErrorCode::kBadInput, curve.source, ": batch size ", row.batch_size, "; at most ", kMaxBatch);
    curve.rows.push_back(row);
    points.push_back({static_cast<double>(row.batch_size), static_cast<double>(*row.steps)});
  }
  if (curve.rows.empty())
    fail(ErrorCode::kBadInput, curve.source,
         ": no batch size reached the goal, so there is no time to it; an easier goal is `cohort study report DIR --goal 'val_error<X'`");
  std::sort(curve.rows.begin(), curve.rows.end(), [](const auto& a, const auto& b) { return a.batch_size < b.batch_size; });
  const std::optional<double> flat = find_regimes(points).flat_from;
  if (!flat) return curve;
  curve.flat_from = static_cast<int64_t>(*flat);
  const auto at = std::find_if(curve.rows.begin(), curve.rows.end(), [&](const auto& row) { return row.batch_size == *curve.flat_from; });
  for (auto row = at + 1; row != curve.rows.end(); ++row)
    if (!falls_significantly(*at, *row)) curve.left_out.push_back(row->batch_size);
  return curve;
}

GoalCurve read_goal_curve(const std::string& path) {
  const std::string text = read_small_file(path, 64 << 20), header = text.substr(0, text.find('\n'));
  if (header.find("steps_low") == std::string::npos) return goal_curve(path, "", read_two_columns(path));
  std::string goal;
  const std::vector<StepsToResult> rows = read_steps_curve(path, &goal);
  return goal_curve(path, goal, rows);
}

std::vector<StepsToResult> steps_of_study(const std::string& folder, std::string* goal) {
  if (const std::string path = folder + "/steps_curve.csv"; std::filesystem::exists(path)) return read_steps_curve(path, goal);
  const StudyData study = Store::open_readonly(folder).read();
  if (study.goals.empty())
    fail(ErrorCode::kBadInput, folder, ": the study has no goal; `cohort study report DIR --goal 'val_error<X'` gives it one");
  *goal = study.goals.front().text();
  return steps_to_result(study, study.goals.front());
}

GoalCurve curve_of_study(const std::string& folder) {
  std::string goal;
  const std::vector<StepsToResult> rows = steps_of_study(folder, &goal);
  return goal_curve(folder, goal, rows);
}

std::vector<GoalSteps> GoalCurve::useful_points() const {
  std::vector<GoalSteps> points = all_points();
  std::erase_if(points,
                [&](const GoalSteps& one) { return std::find(left_out.begin(), left_out.end(), one.batch_size) != left_out.end(); });
  return points;
}

std::vector<GoalSteps> GoalCurve::all_points() const {
  std::vector<GoalSteps> points;
  for (const StepsToResult& row : rows) points.push_back(point_of(row));
  return points;
}

std::string GoalCurve::sentence() const {
  if (!flat_from)
    return rows.size() < 2
               ? ""
               : concat("steps still fall at the largest batch, ", with_commas(rows.back().batch_size), ": a larger one was not studied");
  if (left_out.empty())
    return concat("steps fall by less than a fifth above a batch of ", with_commas(*flat_from),
                  ", but beyond noise: larger ones were looked at too");
  std::vector<std::string> sizes;
  for (const int64_t size : left_out) sizes.push_back(with_commas(size));
  return concat("batches above ", with_commas(*flat_from),
                " need no fewer steps beyond noise, so none is taken for speed (left out: ", join(sizes, ", "), ")");
}

void add_worth(const GoalCurve& curve, TimeToGoal& goal) {
  goal.goal = curve.goal, goal.source = curve.source, goal.curve = curve.sentence();
  goal.flat_from = curve.flat_from, goal.left_out = curve.left_out;
  std::vector<StepTime> times;
  for (const GoalRow& row : goal.rows)
    if (row.plan) {
      const StepForecast& step = row.plan->forecast;
      times.push_back({row.plan->global_batch, row.num_workers, step.step_seconds, step.low_seconds, step.high_seconds});
    }
  const Worth worth = worth_of_workers(curve.rows, times);
  goal.num_worth_having = worth.rows.empty() ? 0 : worth.num_worth_having;
  for (GoalRow& row : goal.rows)
    for (const WorthRow& one : worth.rows)
      if (row.plan && one.num_workers == row.num_workers) row.speed_up = one.speed_up;
}

}  // namespace cohort::study
