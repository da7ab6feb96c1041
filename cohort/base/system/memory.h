#pragma once
// The memory of this process.

#include <cstdint>

#include "cohort/base/export.h"

namespace cohort {

/// The most that was resident at any time. Of memory that processes share by intent (one copy of the weights on a host) each counts its
/// part, as it is shared now.
int64_t peak_memory_bytes();
/// Pages of files, mostly of libraries, that are resident now.
int64_t resident_file_bytes();

/// What this process may still take: of the host's memory that is free, and of its control groups' limits (version 1 or 2) where those
/// leave less. Files that the kernel keeps in memory and can drop count as free.
int64_t available_memory_bytes();

/// From now on the C library keeps freed memory instead of handing it back to the kernel at once. A training step frees and asks for the
/// same tensors again; each page that was handed back would be a page fault (and zeroing) in the next step. Peak memory is unchanged. Whole
/// process.
COHORT_PROGRAM_API void keep_freed_memory();

}  // namespace cohort
