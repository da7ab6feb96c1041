#pragma once
// Steps to result, as the code of Shallue et al. (2019) defines it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// The trials that count: the first num_trials by id that are complete or censored. Indices into `trials`.
std::vector<size_t> counted_trials(const BatchStudy& batch);

/// The first evaluated step of one trial that is strictly better than the goal.
std::optional<int64_t> steps_of_trial(const Trial& trial, const GoalSpec& goal);

/// The sorted steps of all kept trials; infinite for those that did not reach the goal, or were stopped before.
std::vector<double> steps_of_counted_trials(const BatchStudy& batch, const GoalSpec& goal);

/// The law of the minimum of m = `share` x `num_trials` draws with replacement from `num_trials` sorted values, by inversion: the index of
/// the minimum that belongs to `unit` in [0, 1). Its P(index >= r) is (1 - r / num_trials)^m.
size_t index_of_minimum(double unit, size_t num_trials, double share = 1);

struct StepsToResult {
  int64_t batch_size = 0;
  std::optional<int64_t> steps;  ///< Minimum over the kept trials; none where no trial reached the goal.
  int64_t trial_id = -1;         ///< The trial of the minimum; ties go to the lowest id.
  int64_t num_kept = 0, num_reached = 0, num_infeasible = 0;
  int64_t num_stopped = 0;  ///< Kept trials that were stopped early without reaching this goal.
  int64_t step_before = 0;  ///< The evaluated step before `steps` of that trial: the goal was met in (step_before, steps].
  /// Kept trials that were stopped before `steps` without reaching this goal, because censoring did not know the goal: the true minimum may
  /// be smaller. 0 proves that it is not.
  int64_t num_unknown = 0;
  /// 95 % interval of the exact law of the minimum when as many trials are drawn with replacement; none where no trial reached the goal.
  /// `high` is infinite where the quantile lies among trials that did not; `low` is the minimum itself, as no draw is smaller.
  std::optional<double> low, high;
};
StepsToResult steps_to_result(const BatchStudy& batch, const GoalSpec& goal);
std::vector<StepsToResult> steps_to_result(const StudyData& study, const GoalSpec& goal);

/// The best value of a metric at or before a budget of steps or epochs, over kept trials, and its trial (ties go to the earliest step, then
/// the lowest id). None where the batch size's own budget is smaller.
struct BestAtBudget {
  int64_t batch_size = 0, trial_id = -1, step = 0;
  int64_t num_stopped = 0;  ///< Kept trials that were stopped before the budget; above 0 the true best may be better.
  std::optional<double> value;
};
std::vector<BestAtBudget> best_at_steps(const StudyData& study, Metric metric, int64_t budget_steps);
/// Needs num_train_samples, else Error(kBadInput).
std::vector<BestAtBudget> best_at_epochs(const StudyData& study, Metric metric, double budget_epochs);

// Facts about all measurements of a trial, also where only some of them are in memory (archive/archive.h).

int64_t num_measurements(const Trial& trial);
/// The metrics with a value at any measurement.
MetricSet measured_in(const Trial& trial);

/// `step` is that of a measurement at which some metric was better than ever before. The number of evaluations after step 0 up to and
/// including it, and the evaluated step before it, 0 where there is none.
int64_t num_evaluations(const Trial& trial, int64_t step);
int64_t step_before(const Trial& trial, int64_t step);

/// Error(kFailed) where the measurements in memory are not complete for this metric.
void check_kept(const Trial& trial, Metric metric);

// The metrics that a study has values of: not every workload has all (a noisy quadratic has no error).

/// The metrics with a value at any evaluation of any trial.
std::vector<Metric> measured_metrics(const StudyData& study);

/// Whether the study can answer the goal at all; also where nothing was measured yet.
bool can_answer(const StudyData& study, const GoalSpec& goal);

/// Error(kBadInput) "this study does not measure val_error; measured: val_loss" where it can not.
void check_is_measured(const StudyData& study, const GoalSpec& goal);

}  // namespace cohort::study
