#include "cohort/study/analysis/steps_to_result.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/study/analysis/fits.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const GoalSpec kGoal = {.metric = kValError, .value = 0.1};

Trial trial(int64_t id, TrialStatus status, const std::vector<std::pair<int64_t, double>>& curve, Metric metric = kValError) {
  Trial out = {.id = id, .status = status};
  for (const auto& [step, value] : curve) {
    Measurement measurement;
    measurement.step = step;
    measurement.values[metric] = value;
    out.measurements.push_back(measurement);
  }
  out.steps = curve.empty() ? 0 : curve.back().first;
  return out;
}

constexpr TrialStatus kDone = TrialStatus::kComplete;

/// A trial that reaches the goal at `steps`, or never (0), under a budget of 1000.
Trial simple(int64_t id, int64_t steps) {
  return steps == 0 ? trial(id, kDone, {{0, 0.9}, {1000, 0.5}}) : trial(id, kDone, {{0, 0.9}, {steps, 0.05}, {1000, 0.05}});
}

TEST_CASE("steps to result: the first evaluated step strictly better, the least over trials, ties to the lowest id") {
  BatchStudy batch = {.batch_size = 32, .num_trials = 4, .train_steps = 40};
  batch.trials = {trial(0, kDone, {{0, 0.9}, {10, 0.1}, {20, 0.11}, {30, 0.09}, {40, 0.2}}),
                  trial(1, kDone, {{0, 0.9}, {20, 0.2}, {40, 0.2}}),
                  trial(2, kDone, {{0, 0.9}, {15, kNaN}, {28, 0.3}, {30, 0.05}, {40, 0.05}}), trial(3, kDone, {{0, 0.9}, {40, 0.0999}})};
  const StepsToResult result = steps_to_result(batch, kGoal);
  CHECK(result.steps == 30);  // Not 10: equal to the goal is not better.
  CHECK(result.trial_id == 0);
  CHECK(result.step_before == 20);
  CHECK(result.num_kept == 4);
  CHECK(result.num_reached == 3);
  CHECK(result.num_unknown == 0);
  CHECK(result.num_stopped == 0);
  CHECK(*result.low == 30);

  const GoalSpec precise = {.metric = kValPrecision, .value = 0.3};
  batch.trials = {trial(0, kDone, {{5, 0.3}, {40, 0.31}}, kValPrecision), trial(1, kDone, {{5, 0.2}, {25, 0.4}, {40, 0.1}}, kValPrecision)};
  CHECK(steps_to_result(batch, precise).steps == 25);
  CHECK_FALSE(steps_to_result(batch, kGoal).steps.has_value());  // Nothing but NaN.
}

TEST_CASE("steps to result: which trials count") {
  BatchStudy batch = {.batch_size = 1, .num_trials = 3, .train_steps = 1000};
  batch.trials = {simple(0, 500), simple(1, 100), simple(2, 400), simple(3, 450), simple(4, 50)};
  batch.trials[1].status = TrialStatus::kInfeasible;
  batch.trials.push_back(simple(7, 10));
  batch.trials.back().status = TrialStatus::kInfeasible;  // Drawn after the last that counts.
  CHECK(counted_trials(batch) == std::vector<size_t>{0, 2, 3});
  StepsToResult result = steps_to_result(batch, kGoal);
  CHECK(result.steps == 400);
  CHECK(result.trial_id == 2);
  CHECK(result.num_infeasible == 1);
  batch.num_trials = 100;  // Not yet full: trial 4 counts too.
  batch.trials[0].status = TrialStatus::kIncomplete;
  batch.trials[2].status = TrialStatus::kCensored;
  result = steps_to_result(batch, kGoal);
  CHECK(result.steps == 50);
  CHECK(result.num_kept == 3);
  CHECK(result.num_infeasible == 2);
  std::swap(batch.trials[0], batch.trials[4]);  // Order in memory means nothing.
  CHECK(steps_to_result(batch, kGoal).trial_id == 4);
}

TEST_CASE("steps to result: trials that were stopped before a later goal are counted as unknown") {
  BatchStudy batch = {.batch_size = 1, .num_trials = 10, .train_steps = 1000};
  batch.trials = {trial(0, TrialStatus::kCensored, {{0, 0.9}, {300, 0.09}}), trial(1, TrialStatus::kCensored, {{0, 0.9}, {300, 0.3}}),
                  trial(2, TrialStatus::kCensored, {{0, 0.9}, {299, 0.3}}), trial(3, kDone, {{0, 0.9}, {1000, 0.3}}),
                  trial(4, kDone, {{0, 0.9}, {200, 0.2}})};
  StepsToResult result = steps_to_result(batch, kGoal);
  CHECK(result.steps == 300);
  CHECK(result.num_unknown == 2);  // 2 by one step, and 4, whose budget was smaller; 1 cannot be better.
  CHECK(result.num_stopped == 3);
  result = steps_to_result(batch, {.metric = kValError, .value = 0.01});
  CHECK_FALSE(result.steps.has_value());
  CHECK(result.num_unknown == 4);
  CHECK_FALSE(result.low.has_value());
  // An archive that stopped trials by a rule of its own calls them complete.
  batch.early_stopping = true;
  CHECK(steps_to_result(batch, kGoal).num_unknown == 2);
  for (Trial& each : batch.trials) each.status = kDone;
  CHECK(steps_to_result(batch, kGoal).num_unknown == 0);
  CHECK(steps_to_result(batch, kGoal).num_stopped == 0);
}

TEST_CASE("the law of the minimum is that of all draws with replacement") {
  // Five trials, all 5^5 draws: how often each index is the minimum.
  constexpr int kTrials = 5, kDraws = 3125;
  std::vector<int> counts(kTrials);
  for (int draw = 0; draw < kDraws; ++draw) {
    int least = kTrials, rest = draw;
    for (int i = 0; i < kTrials; ++i, rest /= kTrials) least = std::min(least, rest % kTrials);
    ++counts[least];
  }
  double below = 0;
  for (int index = 0; index < kTrials; ++index) {
    const double above = below + static_cast<double>(counts[index]) / kDraws;
    CHECK(index_of_minimum(below + 1e-9, kTrials) == static_cast<size_t>(index));
    if (index + 1 < kTrials) CHECK(index_of_minimum(above - 1e-9, kTrials) == static_cast<size_t>(index));
    below = above;
  }
  CHECK(index_of_minimum(0, 1) == 0);
  // Half the draws: P(index >= r) = (1 - r / 10)^5.
  for (const int index : {1, 4, 9}) {
    const double above = 1 - std::pow(1 - index / 10.0, 5);
    CHECK(index_of_minimum(above - 1e-9, 10, 0.5) == static_cast<size_t>(index - 1));
    CHECK(index_of_minimum(above + 1e-9, 10, 0.5) == static_cast<size_t>(index));
  }
  CHECK(index_of_minimum(std::nextafter(1.0, 0.0), 3) == 2);
}

TEST_CASE("steps to result: the interval is infinite where its end is a trial that did not reach the goal") {
  BatchStudy batch = {.batch_size = 8, .num_trials = 100, .train_steps = 1000};
  for (int64_t id = 0; id < 20; ++id) batch.trials.push_back(simple(id, id < 4 ? 400 + 10 * id : 0));
  StepsToResult result = steps_to_result(batch, kGoal);  // 20 trials: P(minimum above the third) = 0.85^20 = 0.039, above the fourth 0.012.
  CHECK(*result.low == 400);
  CHECK(*result.high == 430);
  batch.trials[3] = simple(3, 0);
  result = steps_to_result(batch, kGoal);
  CHECK(result.num_reached == 3);
  CHECK(*result.high == kInfinity);
  const std::vector<double> values = steps_of_counted_trials(batch, kGoal);
  CHECK(values.size() == 20);
  CHECK(values[2] == 420);
  CHECK(values[3] == kInfinity);
}

TEST_CASE("best value at a budget of steps and of epochs") {
  StudyData study = {.dataset = "d", .num_train_samples = 100};
  study.batches.push_back({.batch_size = 10, .num_trials = 2, .train_steps = 40});
  study.batches.push_back({.batch_size = 20, .num_trials = 2, .train_steps = 20});
  study.batches[0].trials = {trial(0, kDone, {{0, 0.9}, {10, 0.4}, {20, 0.3}, {40, 0.1}}),
                             trial(1, kDone, {{0, 0.9}, {10, 0.5}, {20, 0.3}, {40, 0.2}})};
  study.batches[1].trials = {trial(0, kDone, {{0, 0.8}, {20, 0.25}}), trial(1, TrialStatus::kCensored, {{0, 0.8}, {15, 0.2}})};
  std::vector<BestAtBudget> best = best_at_steps(study, kValError, 20);
  CHECK(*best[0].value == 0.3);
  CHECK(best[0].trial_id == 0);
  CHECK(best[0].step == 20);
  CHECK(best[0].num_stopped == 0);
  CHECK(*best[1].value == 0.2);
  CHECK(best[1].num_stopped == 1);
  best = best_at_steps(study, kValError, 40);
  CHECK(*best[0].value == 0.1);
  CHECK_FALSE(best[1].value.has_value());        // Its budget was 20.
  best = best_at_epochs(study, kValError, 1.9);  // 19 steps, 9 steps.
  CHECK(*best[0].value == 0.4);
  CHECK(*best[1].value == 0.8);
  study.num_train_samples = 0;
  CHECK_THROWS_AS(best_at_epochs(study, kValError, 1), Error);
}

// A made-up trial: a curve that falls with noise, in places below earlier values, and may diverge.
struct Course {
  std::vector<double> errors;  ///< At evaluation 1, 2, ...
  size_t diverges_at = 0;      ///< Evaluation; 0: never.
};
int64_t step_of(size_t evaluation) { return static_cast<int64_t>(std::ceil(10 * std::pow(1.05, static_cast<double>(evaluation)))); }

Course random_course(uint64_t seed, int64_t id, size_t budget) {
  const auto unit = [&](uint64_t key) { return unit_interval(random_bits(seed, id, key)); };
  Course course;
  const double rate = std::exp(4 * unit(0) - 3), floor = 0.2 * unit(1);
  for (size_t i = 1; i <= budget; ++i)
    course.errors.push_back(floor + 0.9 * std::exp(-rate * static_cast<double>(i) / 20) + 0.1 * (unit(10 + i) - 0.5));
  if (unit(2) < 0.4) course.diverges_at = 1 + static_cast<size_t>(unit(3) * static_cast<double>(budget));
  return course;
}

/// The trial run until the first evaluation at or beyond `limit(own steps to the strictest goal or none)`.
Trial run(const Course& course, int64_t id, double best_so_far, double margin, double strictest) {
  Trial out = {.id = id, .status = TrialStatus::kComplete};
  double limit = margin * best_so_far;
  for (size_t i = 1; i <= course.errors.size(); ++i) {
    if (i == course.diverges_at) {
      out.status = TrialStatus::kInfeasible;
      return out;
    }
    Measurement measurement;
    measurement.step = out.steps = step_of(i);
    measurement.values[kValError] = course.errors[i - 1];
    out.measurements.push_back(measurement);
    if (course.errors[i - 1] < strictest) limit = std::min(limit, margin * static_cast<double>(measurement.step));
    if (static_cast<double>(measurement.step) >= limit && i < course.errors.size()) {
      out.status = TrialStatus::kCensored;
      return out;
    }
  }
  return out;
}

TEST_CASE("censoring: the same minimum and the same trial as the full curves, for the strictest and every looser goal") {
  constexpr size_t kBudget = 60;
  int num_censored = 0, num_reached = 0, num_would_diverge = 0, num_saved = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const double margin = seed % 3 == 0 ? 1.0 : seed % 3 == 1 ? 1.5 : 2.0;
    const double strictest = 0.05 + 0.2 * unit_interval(random_bits(seed, 7));
    BatchStudy censored = {.batch_size = 1, .num_trials = 12, .train_steps = step_of(kBudget)}, full = censored;
    double best_so_far = kInfinity;
    for (int64_t id = 0; static_cast<int64_t>(counted_trials(censored).size()) < 12; ++id) {
      const Course course = random_course(seed, id, kBudget);
      const Trial stopped = run(course, id, best_so_far, margin, strictest);
      censored.trials.push_back(stopped);
      if (stopped.status == TrialStatus::kInfeasible) continue;
      if (const auto steps = steps_of_trial(stopped, {.metric = kValError, .value = strictest}))
        best_so_far = std::min(best_so_far, static_cast<double>(*steps));
      // The same points with all that they would ever measure.
      Trial whole = run(course, id, kInfinity, kInfinity, strictest);
      num_would_diverge += whole.status == TrialStatus::kInfeasible;
      whole.status = TrialStatus::kComplete;
      num_censored += stopped.status == TrialStatus::kCensored;
      num_saved += stopped.measurements.size() < whole.measurements.size();
      full.trials.push_back(whole);
    }
    for (const double slack : {0.0, 0.003, 0.02, 0.1, 0.3}) {
      const GoalSpec goal = {.metric = kValError, .value = strictest + slack};
      const StepsToResult of_censored = steps_to_result(censored, goal), of_full = steps_to_result(full, goal);
      CHECK(of_censored.steps == of_full.steps);
      CHECK(of_censored.trial_id == of_full.trial_id);
      CHECK(of_censored.num_unknown == 0);
      num_reached += of_full.steps.has_value();
    }
  }
  // The property was put to the test: most studies reach goals, many trials are cut, some of them before they would diverge.
  CHECK(num_reached > 1000);
  CHECK(num_censored > 1000);
  CHECK(num_saved > 1000);
  CHECK(num_would_diverge > 100);
}

/// One trial at each of two batch sizes; the second measures a test loss once.
StudyData loss_study() {
  StudyData study;
  for (const int64_t size : {8, 16}) {
    Trial trial{.status = TrialStatus::kComplete, .steps = 2};
    trial.measurements.resize(2);
    trial.measurements[0].values[kValLoss] = 1;
    trial.measurements[1].step = 2;
    if (size == 16) trial.measurements[1].values[kTestLoss] = 0.5;
    study.batches.push_back({.batch_size = size, .num_trials = 1, .train_steps = 2, .trials = {trial}});
  }
  return study;
}

TEST_CASE("measured metrics: a value at any evaluation of any trial is enough") {
  CHECK(measured_metrics(loss_study()) == std::vector<Metric>{kValLoss, kTestLoss});
  CHECK(measured_metrics({}).empty());
}

TEST_CASE("measured metrics: a goal on another metric is refused by name, also by the analysis") {
  const StudyData study = loss_study();
  const GoalSpec other{kValError, 0.1};
  CHECK(can_answer(study, {kTestLoss, 0.1}));
  CHECK_FALSE(can_answer(study, other));
  const char* sentence = "goal val_error<0.1: this study does not measure val_error; measured: val_loss, test_loss";
  CHECK_THROWS_WITH_AS(check_is_measured(study, other), sentence, Error);
  CHECK_THROWS_WITH_AS(analyse(study, other, {.num_resamples = 1}), sentence, Error);
}

TEST_CASE("measured metrics: a study that has measured nothing yet is not refused") {
  StudyData study = loss_study();
  for (BatchStudy& batch : study.batches) batch.trials.clear();
  CHECK(can_answer(study, {kValError, 0.1}));
  CHECK_NOTHROW(check_is_measured(study, {kValError, 0.1}));
}

}  // namespace

}  // namespace cohort::study
