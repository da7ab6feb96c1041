#pragma once
// `cohort bench study`.

#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Options of its own; bench has --rounds, --peers and --python, and the settings --data, --lr, --steps, --optimizer and --json.
std::vector<VerbOption> bench_study_options();
int bench_study_verb(const Arguments& arguments);

}  // namespace cohort
