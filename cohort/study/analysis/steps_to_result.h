#pragma once
// Steps to result, as the paper's code defines it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// The trials that count: the first num_trials by id that are complete or censored. Indices into `trials`.
std::vector<size_t> kept_trials(const BatchStudy& batch);

/// The first evaluated step of one trial that is strictly better than the goal.
std::optional<int64_t> steps_of_trial(const Trial& trial, const GoalSpec& goal);

/// Of every kept trial, sorted; infinite for those that did not get there (or were stopped before).
std::vector<double> steps_of_kept_trials(const BatchStudy& batch, const GoalSpec& goal);

/// The law of the minimum of m = `share` x `num_trials` draws with replacement from `num_trials` sorted values, by inversion: the index of
/// the minimum that belongs to `unit` in [0, 1). Its P(index >= r) is (1 - r / num_trials)^m.
size_t index_of_minimum(double unit, size_t num_trials, double share = 1);

struct StepsToResult {
  int64_t batch_size = 0;
  std::optional<int64_t> steps;  ///< Minimum over the kept trials; none where no trial got there.
  int64_t trial_id = -1;         ///< Of the minimum; ties to the lowest id.
  int64_t num_kept = 0, num_reached = 0, num_infeasible = 0;
  int64_t num_stopped = 0;  ///< Kept trials that were stopped early without reaching this goal: no one knows when they would have.
  int64_t step_before = 0;  ///< The evaluated step before `steps` of that trial: the result lies in (step_before, steps].
  /// Kept trials that were stopped before `steps` (or before any bound where there is none) without reaching this goal: a goal asked later
  /// than the censoring knew; the true minimum may then be smaller. 0 proves it is not.
  int64_t num_unknown = 0;
  /// 95 % of the exact law of the minimum when as many trials are drawn with replacement; none where no trial reached; high is infinite
  /// where the law's quantile lies among trials that did not. A minimum drawn again is never smaller, so low is the minimum itself.
  std::optional<double> low, high;
};
StepsToResult steps_to_result(const BatchStudy& batch, const GoalSpec& goal);
std::vector<StepsToResult> steps_to_result(const StudyData& study, const GoalSpec& goal);

/// The other question: the best value of the goal's metric at or before a budget of steps (or epochs), over kept trials; the trial that has
/// it (ties to the earliest step, then the lowest id). None where the batch size's own budget is smaller.
struct BestAtBudget {
  int64_t batch_size = 0, trial_id = -1, step = 0;
  int64_t num_stopped = 0;  ///< Kept trials that were stopped before the budget: with more than 0 the best may be better.
  std::optional<double> value;
};
std::vector<BestAtBudget> best_at_steps(const StudyData& study, Metric metric, int64_t budget_steps);
/// Needs num_train_samples, else Error(kBadInput).
std::vector<BestAtBudget> best_at_epochs(const StudyData& study, Metric metric, double budget_epochs);

// What is asked of all measurements of a trial, also where only some of them are in memory (archive/archive.h).

int64_t num_measurements(const Trial& trial);
/// Those with a value at any measurement.
MetricSet measured_in(const Trial& trial);

/// `step` is that of a measurement at which some metric was better than ever before: how many evaluations after step 0 there are up to and
/// with it, and the evaluated step before it, 0 where there is none.
int64_t num_evaluations(const Trial& trial, int64_t step);
int64_t step_before(const Trial& trial, int64_t step);

/// Error(kFailed) where measurements were left out that a question about this metric needs: nothing may be answered from the rest.
void check_kept(const Trial& trial, Metric metric);

// Which metrics a study has values of: not every workload has every one (a noisy quadratic has no error).

/// Those with a value at any evaluation of any trial.
std::vector<Metric> measured_metrics(const StudyData& study);

/// Whether the study can answer the goal at all; also where nothing was measured yet.
bool may_answer(const StudyData& study, const GoalSpec& goal);

/// Error(kBadInput) "this study does not measure val_error; measured: val_loss" where it can not.
void check_is_measured(const StudyData& study, const GoalSpec& goal);

}  // namespace cohort::study
