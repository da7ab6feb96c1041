#pragma once
// A made-up study of realistic size for the tests of its report: errors that fall with the steps of a hyperbola, learning rates that
// diverge.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "cohort/base/random.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::report {

struct MadeUp {
  int num_batches = 8, num_trials = 20, num_measurements = 100;
  double min_steps = 400, critical = 256;  ///< Of the best trial's steps to an error of 0.12.
  bool has_momentum = true, has_smoothing = false, is_censored = false;
  std::string dataset = "fashion-mnist", model = "fc-64x3", optimizer = "momentum";
  uint64_t seed = 1;
};

inline study::Trial made_up_trial(const MadeUp& what, int64_t batch, int64_t train_steps, int64_t id) {
  const auto unit = [&](uint64_t salt) {
    return static_cast<double>(mix64(mix64(what.seed * 1000 + salt) + static_cast<uint64_t>(id)) >> 11) * 0x1p-53;
  };
  study::Trial trial{
      .id = id, .status = study::TrialStatus::kComplete, .steps = train_steps, .seconds = 0.001 * static_cast<double>(train_steps)};
  const double rate = std::pow(10, -4 + 4 * unit(1));
  const double momentum = what.has_momentum ? 1 - std::pow(10, -3 + 3 * unit(2)) : 0;
  trial.parameters["learning_rate"] = rate;
  if (what.has_momentum) trial.parameters["momentum"] = momentum;
  if (what.has_smoothing) trial.parameters["label_smoothing"] = id % 3 == 0 ? 0 : id % 3 == 1 ? 0.01 : 0.1;
  const double effective = rate / (1 - momentum), best = 0.4 / (1 + what.critical / static_cast<double>(batch));
  if (effective > 20 * best) {
    trial.status = study::TrialStatus::kInfeasible;
    trial.steps = 1 + train_steps / 10;
  }
  // Off the best rate a trial needs more steps, with a little luck of its own.
  const double off = std::log(effective / best);
  const double needed = what.min_steps * (1 + what.critical / static_cast<double>(batch)) * (1 + 0.15 * off * off) * (1 + 0.1 * unit(3));
  int64_t step = 0;
  for (int i = 0; i < what.num_measurements && step <= trial.steps; ++i) {
    study::Measurement measurement;
    measurement.step = step;
    const double progress = static_cast<double>(step) / needed;
    measurement.values[study::kValError] = 0.9 * std::pow(1 + 63.0 * progress, -0.4845) + 0.001 * unit(static_cast<uint64_t>(i + 10));
    measurement.values[study::kValLoss] = 3 * measurement.values[study::kValError];
    trial.measurements.push_back(measurement);
    step = std::max(step + 1, static_cast<int64_t>(std::ceil(
                                  std::pow(static_cast<double>(train_steps), static_cast<double>(i + 1) / (what.num_measurements - 1)))));
  }
  return trial;
}

inline study::StudyData made_up_study(const MadeUp& what = {}) {
  study::StudyData data{
      .dataset = what.dataset, .model = what.model, .optimizer = what.optimizer, .num_train_samples = 55000, .seed = what.seed};
  data.goals = {{study::kValError, 0.12}};
  for (int i = 0; i < what.num_batches; ++i) {
    study::BatchStudy batch{.batch_size = int64_t{8} << i, .num_trials = what.num_trials, .early_stopping = what.is_censored};
    batch.train_steps = static_cast<int64_t>(5 * what.min_steps * (1 + what.critical / static_cast<double>(batch.batch_size)));
    batch.space = {{.name = "learning_rate", .scale = study::Hyperparameter::Scale::kLog, .minimum = 1e-4, .maximum = 1}};
    if (what.has_momentum)
      batch.space.push_back({.name = "momentum", .scale = study::Hyperparameter::Scale::kReverseLog, .minimum = 0, .maximum = 0.999});
    int num_kept = 0;
    int64_t least = batch.train_steps;
    for (int64_t id = 0; num_kept < what.num_trials && id < 10 * what.num_trials; ++id) {
      study::Trial trial = made_up_trial(what, batch.batch_size, batch.train_steps, id);
      if (trial.status == study::TrialStatus::kComplete) {
        ++num_kept;
        for (const study::Measurement& measurement : trial.measurements) {
          if (what.is_censored && data.goals[0].reached(measurement)) least = std::min(least, measurement.step);
        }
        if (least < batch.train_steps) {
          std::erase_if(trial.measurements, [&](const study::Measurement& measurement) { return measurement.step > least; });
          trial.steps = least;
          trial.status = study::TrialStatus::kCensored;
        }
      }
      batch.trials.push_back(std::move(trial));
    }
    data.batches.push_back(std::move(batch));
  }
  return data;
}

/// One of figures_of_study(); without panels where the study has nothing for it.
inline Figure figure_of(const std::string& id, const study::StudyData& study, const study::Analysis& analysis,
                        const StudyBudgets& budgets = {}) {
  for (Figure& figure : figures_of_study({study, analysis, {}, budgets})) {
    if (figure.id == id) return std::move(figure);
  }
  return {};
}
/// The same of what needs no analysis.
inline Figure figure_of(const std::string& id, const study::StudyData& study, const study::GoalSpec& goal,
                        const StudyBudgets& budgets = {}) {
  study::Analysis analysis;
  analysis.goal = goal;
  return figure_of(id, study, analysis, budgets);
}

inline std::string field(const Mark& mark, const std::string& name) {
  for (const Field& one : mark.fields) {
    if (one.name == name) return one.exact;
  }
  return "";
}

}  // namespace cohort::report
