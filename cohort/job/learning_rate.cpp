#include "cohort/job/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cohort/base/fail.h"
#include "cohort/job/training_defaults.h"

namespace cohort {

double LearningRate::at(int64_t step, int64_t total_steps) const {
  if (step < warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (schedule == Schedule::kConstant) return rate;
  const double span = static_cast<double>(std::max<int64_t>(1, decay_steps > 0 ? decay_steps : total_steps - warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  const double shape = schedule == Schedule::kLinear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return rate * (end_factor + (1 - end_factor) * shape);
}

LearningRate learning_rate(const Config& config) {
  using Schedule = LearningRate::Schedule;
  const std::string& name = config.schedule_lr;
  if (name != "constant" && name != "linear" && name != "cosine")
    fail(ErrorCode::kBadInput, name_settings("--schedule-lr: no schedule '"), name, "'; there are: constant linear cosine");
  return {.rate = learning_rate_of(config),
          .schedule = name == "linear"   ? Schedule::kLinear
                      : name == "cosine" ? Schedule::kCosine
                                         : Schedule::kConstant,
          .warmup_steps = config.warmup_steps,
          .decay_steps = config.decay_steps,
          .end_factor = config.lr_end_factor};
}

}  // namespace cohort
