#pragma once
// What a configuration says about the optimizer and its learning rate.

#include <cstdint>

#include "cohort/base/config.h"
#include "cohort/base/layout.h"
#include "cohort/parallel/make_strategy.h"

namespace cohort {

UpdateRule update_rule(const Config& config);
StrategyOptions strategy_options(const Config& config, const Layout& layout);

/// Learning rate of `step` (from 0) of `total_steps`: warm-up from lr/warmup to lr, then constant, linear or cosine down to lr x
/// lr_end_factor, which it has from decay_steps after the warm-up on, or at the end of the run.
double learning_rate_at(const Config& config, int64_t step, int64_t total_steps);

}  // namespace cohort
