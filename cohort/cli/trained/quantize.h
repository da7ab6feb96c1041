#pragma once
// `cohort compress quantize`, an action of compress.cpp.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// `arguments` without the action's word. Returns the exit code.
int run_quantize(const Arguments& arguments);
/// Options of it alone; and what else it reads.
std::vector<VerbOption> quantize_options();
VerbAction quantize_action();

}  // namespace cohort
