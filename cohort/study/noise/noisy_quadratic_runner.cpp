// Trials of the noisy quadratic model: the exact test bed of a study. A trial of any length costs little: between two evaluations the
// moments move in one go (noisy_quadratic_state.cpp), unless the learning rate changes or the noise is drawn.
//
// There are no snapshots: a trial that is gone on with starts over and gives every measurement again, which is what resuming means.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/noise/noisy_quadratic.h"
#include "cohort/study/noise/noisy_quadratic_state.h"

namespace cohort::study {
namespace {

using Clock = std::chrono::steady_clock;

/// Warm-up, then linear decay or a constant rate. docs/algorithms/batch_size_study.md.
struct RateSchedule {
  double rate = 0, end_factor = 0;
  int64_t warmup_steps = 0, decay_steps = 0;

  double at(int64_t step) const {
    if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (decay_steps <= 0) return rate;
    const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
    return rate * (1 - (1 - end_factor) * done);
  }
  /// From here on it is constant.
  int64_t constant_from() const { return warmup_steps + std::max<int64_t>(0, decay_steps); }
};

double value_or(const Parameters& parameters, const std::string& name, double otherwise) {
  const auto at = parameters.find(name);
  return at == parameters.end() ? otherwise : at->second;
}

RateSchedule schedule_of(const TrialOrder& order) {
  const auto rate = order.parameters.find("learning_rate");
  if (rate == order.parameters.end()) fail(ErrorCode::kFailed, "noisy-quadratic: trial ", order.id, " has no learning_rate");
  const double fraction = value_or(order.parameters, "decay_fraction", 0);
  return {.rate = rate->second,
          .end_factor = value_or(order.parameters, "end_factor", 0),
          .warmup_steps = std::llround(value_or(order.parameters, "warmup_steps", 0)),
          .decay_steps = fraction > 0 ? std::llround(fraction * static_cast<double>(order.train_steps))
                                      : std::llround(value_or(order.parameters, "decay_steps", 0))};
}

void check_parameters(const Parameters& parameters) {
  static const std::vector<std::string> known = {"learning_rate",  "momentum",   "weight_decay", "decay_steps",
                                                 "decay_fraction", "end_factor", "warmup_steps"};
  for (const auto& [name, value] : parameters)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::kFailed, "noisy-quadratic: a trial has the parameter ", name, ", which this model does not know; it knows ",
           join(known, " "));
}

class QuadraticRunner : public TrialRunner {
 public:
  explicit QuadraticRunner(const StudySpec& spec) : spec_(spec), model_(parse_noisy_quadratic(spec.data)) {
    quadratic_rule(spec.optimizer, 0.9, 1, spec.weight_decay);  // Refused now, not at the first trial.
  }

  TrialOutcome run(const TrialOrder& order, const TrialWatch& watch) override {
    const auto began = Clock::now();
    check_parameters(order.parameters);
    const RateSchedule schedule = schedule_of(order);
    const auto state = make_quadratic_state(model_, rule_of(order), order.seed);
    TrialOutcome outcome{.status = TrialStatus::kComplete};
    for (const int64_t step : evaluation_steps(spec_.evaluation_ratio, order.train_steps)) {
      advance(*state, schedule, outcome.steps, step);
      outcome.steps = step;
      const double loss = state->loss();
      if (!(loss <= spec_.diverged_above)) {
        outcome.status = TrialStatus::kInfeasible;
        break;
      }
      Measurement measurement;
      measurement.step = step;
      measurement.values[kValLoss] = loss;
      if (spec_.evaluate_train) measurement.values[kTrainLoss] = loss;  // There is one loss: nothing is held out.
      if (watch.measured && watch.measured(measurement) <= step && step < order.train_steps) {
        outcome.status = TrialStatus::kCensored;
        break;
      }
    }
    outcome.seconds = seconds_since(began);
    return outcome;
  }

  /// A step costs nothing where several are made at once: then all of it is the evaluation's.
  Cost measure(int64_t batch_size) override {
    TrialOrder order{.batch_size = batch_size, .train_steps = 1000, .parameters = {{"learning_rate", 0.01}}};
    const auto state = make_quadratic_state(model_, rule_of(order), 1);
    constexpr int kRounds = 20;
    Cost cost;
    if (model_.sampled || has_schedule()) {
      const auto began = Clock::now();
      for (int i = 0; i < kRounds; ++i) state->advance(1, 0.01 + 1e-6 * i);
      cost.step_seconds = seconds_since(began) / kRounds;
    }
    const auto began = Clock::now();
    double sum = 0;
    for (int i = 0; i < kRounds; ++i) {
      if (cost.step_seconds == 0) state->advance(1 + 37 * i, 0.01);
      sum += state->loss();
    }
    cost.evaluation_seconds = seconds_since(began) / kRounds;
    if (!std::isfinite(sum)) fail(ErrorCode::kFailed, spec_.data, ": the loss is not finite while it is timed");
    return cost;
  }

 private:
  QuadraticRule rule_of(const TrialOrder& order) const {
    return quadratic_rule(spec_.optimizer, value_or(order.parameters, "momentum", 0.9), static_cast<double>(order.batch_size),
                          value_or(order.parameters, "weight_decay", spec_.weight_decay));
  }

  bool has_schedule() const {
    for (const BatchSpec& batch : spec_.batches)
      for (const Metaparameter& one : batch.space)
        if (one.name == "decay_steps" || one.name == "decay_fraction" || one.name == "warmup_steps") return true;
    return false;
  }

  static void advance(QuadraticState& state, const RateSchedule& schedule, int64_t from, int64_t to) {
    for (; from < to && from < schedule.constant_from(); ++from) state.advance(1, schedule.at(from));
    if (from < to) state.advance(to - from, schedule.at(from));
  }

  const StudySpec spec_;
  const NoisyQuadratic model_;
};

}  // namespace

std::unique_ptr<TrialRunner> make_noisy_quadratic_runner(const StudySpec& spec) { return std::make_unique<QuadraticRunner>(spec); }

}  // namespace cohort::study
