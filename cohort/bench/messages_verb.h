#pragma once
// `cohort bench messages`.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Runs it; takes --rounds and the setting --json.
int bench_messages_verb(const Arguments& arguments);

}  // namespace cohort
