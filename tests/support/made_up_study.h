#pragma once
// Studies made up for tests: every trial's steps to the goal are given, curves are as plain as can be.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>

#include "cohort/base/random.h"
#include "cohort/study/spec/data.h"

namespace cohort::study::made_up {

inline const GoalSpec kGoal = {.metric = kValError, .value = 0.1};

/// Evaluated at 0, 1, ..., each ceil(1.05 x the one before), up to `steps`, where it is better than kGoal if `reaches`.
inline Trial make_trial(int64_t id, double learning_rate, int64_t steps, bool reaches, TrialStatus status = TrialStatus::kComplete) {
  Trial trial = {.id = id, .parameters = {{"learning_rate", learning_rate}}, .status = status, .steps = steps};
  for (int64_t step = 0;; step = static_cast<int64_t>(std::ceil(1.05 * static_cast<double>(step + (step == 0))))) {
    Measurement measurement;
    measurement.step = std::min(step, steps);
    measurement.values[kValError] = reaches && step >= steps ? 0.05 : 0.5;
    trial.measurements.push_back(measurement);
    if (step >= steps) return trial;
  }
}

/// Trial `id` of `num` has the learning rate at unit (id + 1/2) / num of [1e-3, 1]. `steps_of(batch, unit, id)`: steps to the goal; none:
/// never within the budget; negative: diverged at once.
using StepsOf = std::function<std::optional<double>(int64_t batch_size, double unit, int64_t id)>;
inline BatchStudy make_batch(int64_t batch_size, int64_t num, int64_t train_steps, const StepsOf& steps_of) {
  BatchStudy batch = {.batch_size = batch_size, .num_trials = num, .train_steps = train_steps};
  batch.space = {{.name = "learning_rate", .scale = Hyperparameter::Scale::kLog, .minimum = 1e-3, .maximum = 1}};
  for (int64_t id = 0; id < num; ++id) {
    const double unit = (static_cast<double>(id) + 0.5) / static_cast<double>(num);
    const double rate = value_at(batch.space[0], unit);
    const std::optional<double> steps = steps_of(batch_size, unit, id);
    if (steps && *steps < 0) batch.trials.push_back(make_trial(id, rate, 1, false, TrialStatus::kInfeasible));
    else if (!steps || *steps > static_cast<double>(train_steps)) batch.trials.push_back(make_trial(id, rate, train_steps, false));
    else batch.trials.push_back(make_trial(id, rate, static_cast<int64_t>(std::ceil(*steps)), true));
    batch.trials.back().steps = steps && *steps < 0 ? 1 : train_steps;  // All run their budget.
  }
  return batch;
}

/// The best learning rate is in the middle; S = Smin (1 + (Bc / B)^e)^(1/e) there, and more by chance and by distance.
inline StudyData make_study(double min_steps, double critical, double exponent, int64_t num_trials, uint64_t seed, double spread = 1) {
  StudyData study = {.dataset = "made-up", .model = "none", .optimizer = "sgd", .goals = {kGoal}, .num_train_samples = 10000};
  for (int64_t batch_size = 4; batch_size <= 4096; batch_size *= 2) {
    const double power = std::pow(critical / static_cast<double>(batch_size), exponent);
    const double least = min_steps * std::pow(1 + power, 1 / exponent);
    study.batches.push_back(make_batch(batch_size, num_trials, static_cast<int64_t>(10 * least),
                                       [&](int64_t batch, double unit, int64_t id) -> std::optional<double> {
                                         const double chance = unit_interval(random_bits(seed, batch, id));
                                         return least * std::exp(spread * (2 * std::abs(unit - 0.5) + 0.3 * -std::log(1 - chance)));
                                       }));
  }
  return study;
}

}  // namespace cohort::study::made_up
