#pragma once
// `cohort bench pipeline`.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Runs it; --workload, --rounds, --peers, --python and the settings --workers, --steps, --optimizer and --json are shared with `bench
/// step`.
int bench_pipeline_verb(const Arguments& arguments);
/// Its own options, to be added to those of `bench`.
std::vector<VerbOption> bench_pipeline_options();

}  // namespace cohort
