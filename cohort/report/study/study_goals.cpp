// What figures of studies share: fields and marks of results, and the choice of goals.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxGoals = 6;
constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();
constexpr size_t kTrialsAtGoal = 5;  // A minimum over fewer trials is unreliable.

/// The best values of the trials that count, best first.
std::vector<double> best_values(const BatchStudy& batch, study::Metric metric) {
  std::vector<double> values;
  for (const size_t index : study::counted_trials(batch)) {
    const auto best = best_measurement(batch.trials[index], metric, kAnyStep);
    if (best) values.push_back(best->values[metric]);
  }
  std::sort(values.begin(), values.end());
  if (study::higher_is_better(metric)) std::reverse(values.begin(), values.end());
  return values;
}

bool at_least_half_reach(const StudyData& study, const GoalSpec& goal) {
  size_t num_with_trials = 0, num_reached = 0;
  for (const BatchStudy& batch : study.batches) {
    const std::vector<double> values = best_values(batch, goal.metric);
    if (values.empty()) continue;
    ++num_with_trials;
    num_reached += study::is_better(values.front(), goal.value, goal.metric);
  }
  return num_reached > 0 && 2 * num_reached >= num_with_trials;
}

/// Whether the untrained model (the first measurement) reaches the goal in most trials.
bool is_reached_at_once(const StudyData& study, const GoalSpec& goal) {
  size_t num_first = 0, num_reached = 0;
  for (const BatchStudy& batch : study.batches) {
    for (const size_t index : study::counted_trials(batch)) {
      const Trial& trial = batch.trials[index];
      if (trial.measurements.empty()) continue;
      ++num_first;
      num_reached += goal.reached(trial.measurements.front());
    }
  }
  return 2 * num_reached > num_first;
}

}  // namespace

std::vector<Field> trial_fields(const BatchStudy& batch, const Trial& trial) {
  std::vector<Field> fields = {number_field("batch size", static_cast<double>(batch.batch_size)),
                               number_field("trial", static_cast<double>(trial.id))};
  for (const auto& [name, value] : trial.parameters) fields.push_back(number_field(name, value));
  fields.push_back(text_field("status", study::name_of(trial.status)));
  fields.push_back(number_field("trained steps", static_cast<double>(trial.steps)));
  return fields;
}

std::vector<Field> result_fields(const BatchStudy& batch, const study::StepsToResult& result, const GoalSpec& goal) {
  std::vector<Field> fields = {text_field("goal", goal.text())};
  if (result.steps) fields.push_back(number_field("steps", static_cast<double>(*result.steps)));
  if (result.low) fields.push_back(number_field("steps low", *result.low));
  if (result.high) fields.push_back(number_field("steps high", *result.high));
  if (const Trial* trial = find_trial(batch, result.trial_id)) {
    for (Field& field : trial_fields(batch, *trial)) fields.push_back(std::move(field));
  }
  fields.push_back(number_field("trials at the goal", static_cast<double>(result.num_reached)));
  fields.push_back(number_field("trials kept", static_cast<double>(result.num_kept)));
  return fields;
}

std::optional<Mark> result_mark(const StudyData& study, const study::StepsToResult& result, const GoalSpec& goal) {
  const BatchStudy* batch = find_batch(study, result.batch_size);
  if (!result.steps || batch == nullptr) return std::nullopt;
  Mark mark{.x = static_cast<double>(result.batch_size), .y = static_cast<double>(*result.steps)};
  if (result.low && result.high) mark.bar = std::pair(*result.low, *result.high);
  mark.hollow = result.num_unknown > 0;
  mark.fields = result_fields(*batch, result, goal);
  return mark;
}

PlotSeries result_series(const StudyData& study, const std::vector<study::StepsToResult>& results, const GoalSpec& goal) {
  PlotSeries series;
  for (const study::StepsToResult& result : results)
    if (auto mark = result_mark(study, result, goal)) series.marks.push_back(std::move(*mark));
  return series;
}

std::vector<double> searched_values(const StudyData& study, const std::string& parameter) {
  std::set<double> values;
  for (const BatchStudy& batch : study.batches)
    for (const size_t index : study::counted_trials(batch))
      if (const auto value = study::find_parameter(batch.trials[index].parameters, parameter)) values.insert(*value);
  return {values.begin(), values.end()};
}

std::optional<study::Measurement> best_measurement(const Trial& trial, study::Metric metric, int64_t last_step) {
  study::check_kept(trial, metric);
  std::optional<study::Measurement> best;
  for (const study::Measurement& measurement : trial.measurements) {
    if (measurement.step > last_step) break;
    const double value = measurement.values[metric];
    if (!std::isnan(value) && (!best || study::is_better(value, best->values[metric], metric))) best = measurement;
  }
  return best;
}

double round_digits(double value, int digits, bool upwards) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double exponent = std::floor(std::log10(std::abs(value)) + 1e-12) - digits + 1;
  // Below 1 the unit is not an exact double, but its reciprocal is.
  const double unit = std::pow(10, std::abs(exponent)), scaled = exponent < 0 ? value * unit : value / unit;
  const double rounded = upwards ? std::ceil(scaled - 1e-9) : std::floor(scaled + 1e-9);
  return exponent < 0 ? rounded / unit : rounded * unit;
}

std::optional<GoalSpec> automatic_goal(const StudyData& study) {
  for (const study::Metric metric : {study::kValError, study::kValPrecision, study::kValLoss}) {
    std::optional<double> hardest;
    for (const BatchStudy& batch : study.batches) {
      const std::vector<double> values = best_values(batch, metric);
      if (values.empty()) continue;
      const double value = values[std::min(values.size(), kTrialsAtGoal) - 1];
      if (!hardest || study::is_better(*hardest, value, metric)) hardest = value;
    }
    if (!hardest) continue;
    const bool is_up = !study::higher_is_better(metric);
    GoalSpec goal{metric, round_digits(*hardest, 2, is_up)};
    // Goals are reached strictly beyond the value: a value equal to the rounded one needs the next one.
    if (goal.value == *hardest) goal.value = round_digits(*hardest * (is_up ? 1.005 : 0.995), 3, is_up);
    return goal;
  }
  return std::nullopt;
}

std::vector<GoalSpec> several_goals(const StudyData& study, const GoalSpec& goal, const std::vector<GoalSpec>& requested) {
  std::vector<GoalSpec> goals = {goal};
  const auto easiest_first = [&] {
    std::sort(goals.begin(), goals.end(),
              [&](const GoalSpec& a, const GoalSpec& b) { return study::is_better(b.value, a.value, goal.metric); });
  };
  if (!requested.empty()) {
    for (const GoalSpec& one : requested)
      if (one.metric == goal.metric && one.value != goal.value) goals.push_back(one);
    easiest_first();
    return goals;
  }
  const auto add = [&](const GoalSpec& other, double least_distance) {
    if (goals.size() >= kMaxGoals || other.metric != goal.metric) return;
    for (const GoalSpec& one : goals) {
      if (std::abs(std::log(std::abs(other.value / one.value))) <= least_distance) return;
    }
    if (at_least_half_reach(study, other) && !is_reached_at_once(study, other)) goals.push_back(other);
  };
  for (const GoalSpec& one : study.goals) add(one, 1e-9);
  const bool higher = study::higher_is_better(goal.metric);
  for (const double factor : {1.25, 1.1, 0.95, 1.5, 0.9, 2.0}) {
    GoalSpec other = goal;
    other.value = round_digits(higher ? goal.value / factor : goal.value * factor, 3, !higher);
    add(other, 0.02);
  }
  easiest_first();
  return goals;
}

}  // namespace cohort::report
