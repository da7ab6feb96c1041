#pragma once
// What `cohort plan` does with --instance. Internal to this folder.

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Prints the answer as a table, or as one JSON line under --json. Error(kBadInput) for options that are for a profile and a cluster.
int plan_instance(const Arguments& arguments);

}  // namespace cohort
