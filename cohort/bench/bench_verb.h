#pragma once
// `cohort bench`: what the program has and the library has not.

#include "cohort/cli/options/verb.h"

namespace cohort {

Verb bench_verb();

}  // namespace cohort
