#pragma once
// Memory that LibTorch's CPU allocator and the shared arena have given to this process, counted and, where asked, limited.

#include <cstdint>

namespace cohort {

/// How the error of a limit begins: the command line knows it by that.
inline constexpr const char* kMemoryLimitReached = "this rank's memory limit is reached";

/// From now on LibTorch's CPU allocations of this process are counted and those that would pass `limit_bytes` refused: Error(kEnvironment)
/// that says what was asked for, what is held and the limit. 0: count only. Call once, before ranks' models are built; what was allocated
/// before is not counted, but for count_memory(). Also call it before a GradientMemory is made (parallel/one_copy/gradient_memory.cpp,
/// which takes LibTorch's allocator over from here): after it, what that gives out would be counted twice. A second call sets another
/// limit. The three below are thread-safe.
void limit_memory(int64_t limit_bytes);
/// Bytes held now and at most so far; 0 where limit_memory() was not called. What this rank took from the arena shared with its host counts
/// here, what its peers took does not.
int64_t counted_memory_bytes();
int64_t peak_counted_memory_bytes();

/// For memory that does not come from LibTorch's allocator. Throws like an allocation; negative gives back, and never throws. Counts from
/// the start of the process, so that what is given back later was counted.
void count_memory(int64_t bytes);

}  // namespace cohort
