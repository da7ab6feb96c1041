#pragma once
// `cohort compress prune`, an action of compress.cpp.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// `arguments` without the action's word. Returns the exit code.
int run_prune(const Arguments& arguments);
/// Options of it alone; and what else it reads.
std::vector<VerbOption> prune_options();
VerbAction prune_action();

}  // namespace cohort
