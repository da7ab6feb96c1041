#pragma once
// What a job says about how ranks exchange gradients and apply them.

#include "cohort/base/export.h"
#include "cohort/job/job.h"
#include "cohort/parallel/make_strategy.h"

namespace cohort {

COHORT_PROGRAM_API StrategyOptions strategy_options(const Job& job);

}  // namespace cohort
