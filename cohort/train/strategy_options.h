#pragma once
// What a job says about how ranks exchange gradients and apply them.

#include "cohort/job/job.h"
#include "cohort/parallel/make_strategy.h"

namespace cohort {

StrategyOptions strategy_options(const Job& job);

}  // namespace cohort
