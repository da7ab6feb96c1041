#pragma once
// Counts, and optionally limits, memory allocated in this process by LibTorch's CPU allocator and the shared arena.

#include <cstdint>

namespace cohort {

/// Begin of the limit's error, by which the command line recognizes it.
inline constexpr const char* kMemoryLimitReached = "this rank's memory limit is reached";

/// Counts LibTorch's CPU allocations from now on and refuses those beyond `limit_bytes` (0: no limit) with Error(kEnvironment), which
/// states the request, the total and the limit. A second call changes the limit. Call before models are built, whose earlier allocations
/// are not counted (except count_memory()), and before a GradientMemory is made, which wraps LibTorch's allocator too and would be counted
/// twice. Thread-safe, like the functions below.
void limit_memory(int64_t limit_bytes);
/// Bytes held now, and the peak; 0 before limit_memory(). Includes memory that this rank, not its peers, took from the shared arena.
int64_t counted_memory_bytes();
int64_t peak_counted_memory_bytes();

/// For memory from other allocators. Throws like an allocation; a negative number releases and never throws. Counts from the start of the
/// process.
void count_memory(int64_t bytes);

}  // namespace cohort
