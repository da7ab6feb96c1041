#pragma once
// `cohort bench plan`.

#include <vector>

#include "cohort/cli/verb.h"

namespace cohort {

std::vector<VerbOption> bench_plan_options();

/// Solves each file and prints a line for it, at once.
int bench_plan_verb(const Arguments& arguments);

}  // namespace cohort
