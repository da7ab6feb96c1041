#pragma once
// The learning rate of each step, and the learning rate and weight decay of a run that names none. Torch-free.

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

  /// Of `step` (from 0) of `total_steps`: warm-up from rate/warmup_steps to rate, then constant, linear or cosine down to rate x
  /// end_factor.
  double at(int64_t step, int64_t total_steps) const;
};

/// Of --lr, --schedule-lr and what belongs to them.
LearningRate learning_rate(const Config& config);

// The learning rate and weight decay of a run that names none: by optimizer and model. A rate that suits SGD (0.1) leaves Adam at chance.

/// Models that take one rate; the last row is for all others, a user's own among them.
struct ModelFamily {
  std::string name;
  std::vector<std::string> models;
};
const std::vector<ModelFamily>& model_families();

/// `model` as --model has it, with or without its sizes.
double default_learning_rate(const std::string& optimizer, const std::string& model);
double default_weight_decay(const std::string& optimizer);

/// What the configuration says, or the default.
double learning_rate_of(const Config& config);
double weight_decay_of(const Config& config);
/// With numbers in place of `auto`: what a run trains with and its config.toml has.
Config with_defaults(Config config);

/// The table of learning rates as text, for -h.
std::string learning_rate_table();

}  // namespace cohort
