// Steps to result: the fewest steps in which any trial of a batch size reached the goal, with an interval from the exact law of the minimum
// under resampling; and the best value within a budget. Source: Shallue et al. 2019; docs/algorithms/batch_size_study.md.
#include "cohort/study/analysis/steps_to_result.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort::study {
namespace {

bool counts(const Trial& trial) { return trial.status == TrialStatus::kComplete || trial.status == TrialStatus::kCensored; }

int64_t last_step(const Trial& trial) { return trial.measurements.empty() ? 0 : trial.measurements.back().step; }

/// Tells which trials ended before the current budget of their batch size, so that their later course is unknown: censored ones, and
/// complete ones that ended at an easier goal or under a smaller budget. Published archives with early stopping have no censored trials;
/// they count stopped trials as complete ones that never reach the goal, and so do we.
class Stopped {
 public:
  explicit Stopped(const BatchStudy& batch) {
    const bool any = std::any_of(batch.trials.begin(), batch.trials.end(), is_censored);
    if (any || !batch.early_stopping) train_steps_ = batch.train_steps;
  }
  bool operator()(const Trial& trial) const { return is_censored(trial) || std::max(trial.steps, last_step(trial)) < train_steps_; }

 private:
  static bool is_censored(const Trial& trial) { return trial.status == TrialStatus::kCensored; }
  int64_t train_steps_ = 0;  ///< Complete trials with fewer steps were stopped; 0: none was.
};

void set_interval(StepsToResult& result, const BatchStudy& batch, const GoalSpec& goal) {
  constexpr double kTail = 0.025;
  const std::vector<double> values = steps_of_counted_trials(batch, goal);
  result.low = values[index_of_minimum(kTail, values.size())];
  result.high = values[index_of_minimum(1 - kTail, values.size())];
}

BestAtBudget best_of(const BatchStudy& batch, Metric metric, double budget_steps) {
  BestAtBudget best = {.batch_size = batch.batch_size};
  if (batch.train_steps > 0 && static_cast<double>(batch.train_steps) < std::floor(budget_steps)) return best;
  const Stopped was_stopped(batch);
  for (const size_t index : counted_trials(batch)) {
    const Trial& trial = batch.trials[index];
    check_kept(trial, metric);
    if (was_stopped(trial) && static_cast<double>(last_step(trial)) < std::floor(budget_steps)) ++best.num_stopped;
    for (const Measurement& measurement : trial.measurements) {
      const double value = measurement.values[metric];
      if (std::isnan(value) || static_cast<double>(measurement.step) > budget_steps) continue;
      const bool is_first = !best.value || is_better(value, *best.value, metric) || (value == *best.value && measurement.step < best.step);
      if (!is_first) continue;
      best.value = value;
      best.step = measurement.step;
      best.trial_id = trial.id;
    }
  }
  return best;
}

}  // namespace

std::vector<size_t> counted_trials(const BatchStudy& batch) {
  std::vector<size_t> kept;
  for (size_t i = 0; i < batch.trials.size(); ++i)
    if (counts(batch.trials[i])) kept.push_back(i);
  std::sort(kept.begin(), kept.end(), [&](size_t a, size_t b) { return batch.trials[a].id < batch.trials[b].id; });
  if (static_cast<int64_t>(kept.size()) > batch.num_trials) kept.resize(std::max<int64_t>(batch.num_trials, 0));
  return kept;
}

std::optional<int64_t> steps_of_trial(const Trial& trial, const GoalSpec& goal) {
  check_kept(trial, goal.metric);
  for (const Measurement& measurement : trial.measurements)
    if (goal.reached(measurement)) return measurement.step;
  return std::nullopt;
}

std::vector<double> steps_of_counted_trials(const BatchStudy& batch, const GoalSpec& goal) {
  std::vector<double> values;
  for (const size_t index : counted_trials(batch)) {
    const std::optional<int64_t> steps = steps_of_trial(batch.trials[index], goal);
    values.push_back(steps ? static_cast<double>(*steps) : std::numeric_limits<double>::infinity());
  }
  std::sort(values.begin(), values.end());
  return values;
}

size_t index_of_minimum(double unit, size_t num_trials, double share) {
  const double count = static_cast<double>(num_trials);
  const auto index = static_cast<size_t>(count * -std::expm1(std::log1p(-unit) / (share * count)));
  return std::min(index, num_trials - 1);
}

StepsToResult steps_to_result(const BatchStudy& batch, const GoalSpec& goal) {
  StepsToResult result = {.batch_size = batch.batch_size};
  const std::vector<size_t> kept = counted_trials(batch);
  const Stopped was_stopped(batch);
  result.num_kept = static_cast<int64_t>(kept.size());
  // Points drawn after the last trial that counts do not belong to the search.
  const bool is_full = result.num_kept > 0 && result.num_kept == batch.num_trials;
  for (const Trial& trial : batch.trials)
    result.num_infeasible += trial.status == TrialStatus::kInfeasible && !(is_full && trial.id > batch.trials[kept.back()].id);
  for (const size_t index : kept) {
    const Trial& trial = batch.trials[index];
    const std::optional<int64_t> steps = steps_of_trial(trial, goal);
    result.num_reached += steps.has_value();
    result.num_stopped += !steps && was_stopped(trial);
    if (!steps || (result.steps && *steps >= *result.steps)) continue;
    result.steps = steps;
    result.trial_id = trial.id;
  }
  for (const size_t index : kept) {
    const Trial& trial = batch.trials[index];
    const bool open = was_stopped(trial) && !steps_of_trial(trial, goal);
    result.num_unknown += open && (!result.steps || last_step(trial) < *result.steps);
  }
  if (!result.steps) return result;
  result.step_before = step_before(*find_trial(batch, result.trial_id), *result.steps);
  set_interval(result, batch, goal);
  return result;
}

std::vector<StepsToResult> steps_to_result(const StudyData& study, const GoalSpec& goal) {
  std::vector<StepsToResult> results;
  for (const BatchStudy& batch : study.batches) results.push_back(steps_to_result(batch, goal));
  return results;
}

std::vector<BestAtBudget> best_at_steps(const StudyData& study, Metric metric, int64_t budget_steps) {
  std::vector<BestAtBudget> best;
  for (const BatchStudy& batch : study.batches) best.push_back(best_of(batch, metric, static_cast<double>(budget_steps)));
  return best;
}

std::vector<BestAtBudget> best_at_epochs(const StudyData& study, Metric metric, double budget_epochs) {
  if (study.num_train_samples <= 0)
    fail(ErrorCode::kBadInput, "best value at ", budget_epochs, " epochs: the number of training samples of ", study.dataset,
         " is not known; ask for a budget of steps");
  std::vector<BestAtBudget> best;
  for (const BatchStudy& batch : study.batches) {
    const double budget = budget_epochs * static_cast<double>(study.num_train_samples) / static_cast<double>(batch.batch_size);
    best.push_back(best_of(batch, metric, budget));
  }
  return best;
}

namespace {

/// Index of the first measurement in memory at or after `step`.
size_t index_of(const Trial& trial, int64_t step) {
  const auto found = std::lower_bound(trial.measurements.begin(), trial.measurements.end(), step,
                                      [](const Measurement& one, int64_t at) { return one.step < at; });
  return static_cast<size_t>(found - trial.measurements.begin());
}

WholeCourse::Place place_of(const Trial& trial, int64_t step) {
  const size_t index = index_of(trial, step);
  if (index == trial.measurements.size() || trial.measurements[index].step != step)
    fail(ErrorCode::kFailed, "trial ", trial.id, ": the measurement at step ", step, " was not kept");
  return trial.whole->places[index];
}

}  // namespace

int64_t num_measurements(const Trial& trial) {
  return trial.whole ? trial.whole->num_measurements : static_cast<int64_t>(trial.measurements.size());
}

MetricSet measured_in(const Trial& trial) {
  if (trial.whole) return trial.whole->measured;
  MetricSet measured;
  for (const Measurement& measurement : trial.measurements)
    for (size_t metric = 0; metric < kNumMetrics; ++metric) measured[metric] = measured[metric] || !std::isnan(measurement.values[metric]);
  return measured;
}

int64_t num_evaluations(const Trial& trial, int64_t step) {
  if (trial.whole) return place_of(trial, step).number;
  return std::count_if(trial.measurements.begin(), trial.measurements.end(),
                       [&](const Measurement& measurement) { return measurement.step > 0 && measurement.step <= step; });
}

int64_t step_before(const Trial& trial, int64_t step) {
  if (trial.whole) return place_of(trial, step).step_before;
  const size_t index = index_of(trial, step);
  return index == 0 ? 0 : trial.measurements[index - 1].step;
}

void check_kept(const Trial& trial, Metric metric) {
  if (!trial.whole || trial.whole->kept[metric]) return;
  fail(ErrorCode::kFailed, "trial ", trial.id, ": the measurements of ", name_of(metric), " were not kept");
}

std::vector<Metric> measured_metrics(const StudyData& study) {
  MetricSet is_measured;
  for (const BatchStudy& batch : study.batches)
    for (const Trial& trial : batch.trials) is_measured |= measured_in(trial);
  std::vector<Metric> metrics;
  for (size_t metric = 0; metric < kNumMetrics; ++metric)
    if (is_measured[metric]) metrics.push_back(static_cast<Metric>(metric));
  return metrics;
}

bool can_answer(const StudyData& study, const GoalSpec& goal) {
  const std::vector<Metric> measured = measured_metrics(study);
  return measured.empty() || std::find(measured.begin(), measured.end(), goal.metric) != measured.end();
}

void check_is_measured(const StudyData& study, const GoalSpec& goal) {
  if (can_answer(study, goal)) return;
  std::vector<std::string> names;
  for (const Metric metric : measured_metrics(study)) names.emplace_back(name_of(metric));
  fail(ErrorCode::kBadInput, "goal ", goal.text(), ": this study does not measure ", name_of(goal.metric),
       "; measured: ", join(names, ", "));
}

}  // namespace cohort::study
