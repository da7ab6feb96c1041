#pragma once
// `cohort bench forecast`.

#include <vector>

#include "cohort/cli/verb.h"

namespace cohort {

/// But for --format, which `bench plan` has too.
std::vector<VerbOption> bench_forecast_options();
/// Runs it; takes --format, --fit and --json, and files.
int bench_forecast_verb(const Arguments& arguments);

}  // namespace cohort
