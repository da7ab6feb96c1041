#pragma once
// `cohort bench sync`.

#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

std::vector<VerbOption> bench_sync_options();
/// Runs it; takes --workload, those options and the settings workers, steps, json.
int bench_sync_verb(const Arguments& arguments);

}  // namespace cohort
