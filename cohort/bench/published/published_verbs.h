#pragma once
// `cohort bench plan` and `cohort bench forecast`: the planner on published instances, and forecasts beside published measurements.

#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

std::vector<VerbOption> bench_plan_options();
/// Solves each file and prints a line for it, at once.
int bench_plan_verb(const Arguments& arguments);

/// But for --format, which `bench plan` has too.
std::vector<VerbOption> bench_forecast_options();
/// Takes --format, --fit and --json, and files.
int bench_forecast_verb(const Arguments& arguments);

}  // namespace cohort
