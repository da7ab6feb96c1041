#pragma once
// `cohort plan --find-batch`.

#include "cohort/cli/verb.h"

namespace cohort {

int plan_batch(const Arguments& arguments);

}  // namespace cohort
