#pragma once
// `cohort bench handover`.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Runs it; takes --rounds and the settings --backend and --json.
int bench_handover_verb(const Arguments& arguments);

}  // namespace cohort
