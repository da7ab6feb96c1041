#pragma once
// The options of the strategy that exchanges and applies gradients, from a job.

#include "cohort/base/export.h"
#include "cohort/job/job.h"
#include "cohort/parallel/make_strategy.h"

namespace cohort {

COHORT_PROGRAM_API StrategyOptions strategy_options(const Job& job);

}  // namespace cohort
