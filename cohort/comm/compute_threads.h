#pragma once
// LibTorch's compute threads of this process.

#include "cohort/base/export.h"

namespace cohort {

/// Sets how many there are; 0: one a core that may be used. Calls settle_vector_functions().
COHORT_PROGRAM_API void use_compute_threads(int threads);

/// Calls each vector function (exp, tanh, ...) and the matrix product once, the first time this is called. MKL sets itself up in the first
/// call of each; where several threads make first calls at once, as those of one large tensor do, some have got values that are wrong in
/// the fourth digit (docs/lab/first_calls.md). Before any other thread computes.
void settle_vector_functions();

}  // namespace cohort
