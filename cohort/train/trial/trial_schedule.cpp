#include "cohort/train/trial/trial_schedule.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/error.h"
#include "cohort/job/config.h"
#include "cohort/job/update_rule.h"

namespace cohort {
namespace {

/// A trial's parameter or its default, inside of what it may be.
class Reader {
 public:
  explicit Reader(const study::Parameters& parameters) : parameters_(parameters) {}

  double number(const char* name, double fallback, double minimum, double maximum, bool open_end = false) const {
    const auto found = parameters_.find(name);
    const double value = found == parameters_.end() ? fallback : found->second;
    if (!(value >= minimum) || value > maximum || (open_end && value == maximum))
      fail(ErrorCode::kBadInput, "trial parameter ", name, ": expected ", minimum, " to ", open_end ? "below " : "", maximum, ", found ",
           value);
    return value;
  }
  int64_t steps(const char* name) const { return std::llround(number(name, 0, 0, kMostSteps)); }

 private:
  static constexpr double kMostSteps = 1e15;
  const study::Parameters& parameters_;
};

}  // namespace

double TrialSchedule::learning_rate_at(int64_t step) const {
  if (step < warmup_steps) return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (decay_steps == 0) return learning_rate;
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
  return learning_rate * (end_factor + (1 - end_factor) * (1 - done));
}

TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps) {
  constexpr double kLargest = 1e30;
  const Reader read(parameters);
  Config config;
  config.optimizer = spec.optimizer;
  config.momentum = read.number("momentum", config.momentum, 0, 1, true);
  config.beta1 = read.number("beta1", config.beta1, 0, 1, true);
  config.beta2 = read.number("beta2", config.beta2, 0, 1, true);
  config.eps = read.number("epsilon", config.eps, 0, kLargest);
  config.weight_decay = read.number("weight_decay", spec.weight_decay, 0, kLargest);
  TrialSchedule schedule{.rule = update_rule(config)};
  schedule.learning_rate = read.number("learning_rate", 0, 0, kLargest);
  if (schedule.learning_rate == 0) fail(ErrorCode::kBadInput, "trial parameter learning_rate: expected a positive number, found none");
  schedule.label_smoothing = read.number("label_smoothing", 0, 0, 1);
  schedule.end_factor = read.number("end_factor", 0, 0, kLargest);
  schedule.warmup_steps = read.steps("warmup_steps");
  schedule.decay_steps = read.steps("decay_steps");
  const double fraction = read.number("decay_fraction", 0, 0, kLargest);
  if (schedule.decay_steps == 0 && fraction > 0)
    schedule.decay_steps = std::max<int64_t>(1, std::llround(fraction * static_cast<double>(train_steps)));
  return schedule;
}

}  // namespace cohort
