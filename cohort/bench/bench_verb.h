#pragma once
// `cohort bench`: what the program has and the library has not.

#include "cohort/cli/verb.h"

namespace cohort {

Verb bench_verb();

}  // namespace cohort
