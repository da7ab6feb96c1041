#pragma once
// The memory of this process.

#include <cstdint>

#include "cohort/base/export.h"

namespace cohort {

/// The most that was resident at any time; memory shared with other processes counts whole.
int64_t peak_memory_bytes();

/// From now on the C library keeps freed memory instead of handing it back to the kernel at once. A training step frees and asks for the
/// same tensors again; each page that was handed back would be a page fault (and zeroing) in the next step. Peak memory is unchanged. Whole
/// process.
COHORT_PROGRAM_API void keep_freed_memory();

}  // namespace cohort
