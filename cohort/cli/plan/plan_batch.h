#pragma once
// `cohort plan --find-batch`.

#include "cohort/cli/options/verb.h"

namespace cohort {

int plan_batch(const Arguments& arguments);

}  // namespace cohort
