#pragma once
// LibTorch's intra-op threads in this process.

#include "cohort/base/export.h"

namespace cohort {

/// Sets their number; 0: one per usable core. Calls warm_up_vector_functions().
COHORT_PROGRAM_API void use_compute_threads(int threads);

/// Calls each vector function (exp, tanh, ...) and the matrix product once per process, before other threads compute. MKL initializes in
/// the first call of each; where several threads make first calls at once, some have returned values wrong in the fourth digit
/// (docs/lab/first_calls.md).
void warm_up_vector_functions();

}  // namespace cohort
