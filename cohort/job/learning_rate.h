#pragma once
// Learning rate schedules, and default learning rates and weight decays by optimizer and model (a rate for SGD such as 0.1 leaves Adam at
// chance). Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/config.h"

namespace cohort {

struct LearningRate {
  enum class Schedule { kConstant, kLinear, kCosine };
  double rate = 0;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< After the warm-up; 0: to the end of the run.
  double end_factor = 0;

  /// The rate of `step` (from 0): warm-up from rate/warmup_steps to rate, then constant, linear or cosine down to rate x end_factor.
  double at(int64_t step, int64_t total_steps) const;
};

/// The schedule of --lr, --schedule-lr and related settings.
LearningRate learning_rate(const Config& config);

/// Models with one default rate; the last row is for all others.
struct ModelFamily {
  std::string name;
  std::vector<std::string> models;
};
const std::vector<ModelFamily>& model_families();

/// `model`: a value of --model, with or without options.
double default_learning_rate(const std::string& optimizer, const std::string& model);
double default_weight_decay(const std::string& optimizer);

/// The configured value, or the default.
double effective_learning_rate(const Config& config);
double effective_weight_decay(const Config& config);
/// Replaces `auto` by the default values.
Config with_defaults(Config config);

/// The table of default learning rates as text, for -h.
std::string learning_rate_table();

}  // namespace cohort
