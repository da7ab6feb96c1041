#pragma once
// `cohort bench collectives`.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Runs it; --rounds and the settings --workers, --json and --timeout are shared with the other benchmarks.
int bench_collectives_verb(const Arguments& arguments);
/// Its own options, to be added to those of `bench`.
std::vector<VerbOption> bench_collectives_options();

}  // namespace cohort
