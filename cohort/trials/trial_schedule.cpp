#include "cohort/trials/trial_schedule.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
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

TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps) {
  constexpr double kLargest = 1e30;
  const Reader read(parameters);
  TrialSchedule trial;
  UpdateRule& rule = trial.rule;
  rule.kind = optimizer_kind(spec.optimizer);
  rule.momentum = read.number("momentum", rule.momentum, 0, 1, true);
  rule.beta1 = read.number("beta1", rule.beta1, 0, 1, true);
  rule.beta2 = read.number("beta2", rule.beta2, 0, 1, true);
  rule.eps = read.number("epsilon", rule.eps, 0, kLargest);
  rule.weight_decay = read.number("weight_decay", spec.weight_decay, 0, kLargest);
  trial.label_smoothing = read.number("label_smoothing", 0, 0, 1);
  trial.label_smoothing_over = spec.label_smoothing_over;
  trial.average_decay = read.number("average_decay", 0, 0, 1, true);
  LearningRate& rate = trial.learning_rate;
  rate.rate = read.number("learning_rate", 0, 0, kLargest);
  if (rate.rate == 0) fail(ErrorCode::kBadInput, "trial parameter learning_rate: expected a positive number, found none");
  rate.end_factor = read.number("end_factor", 0, 0, kLargest);
  rate.warmup_steps = read.steps("warmup_steps");
  rate.decay_steps = read.steps("decay_steps");
  const double fraction = read.number("decay_fraction", 0, 0, kLargest);
  if (rate.decay_steps == 0 && fraction > 0)
    rate.decay_steps = std::max<int64_t>(1, std::llround(fraction * static_cast<double>(train_steps)));
  if (rate.decay_steps > 0) rate.schedule = LearningRate::Schedule::kLinear;
  return trial;
}

}  // namespace cohort
