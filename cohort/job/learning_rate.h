#pragma once
// The learning rate of each step. Torch-free.

#include <cstdint>

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

}  // namespace cohort
