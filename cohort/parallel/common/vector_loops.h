#pragma once
// Vectorised loops over plain arrays that give the same bits on every machine.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cohort/comm/transport/half_bits.h"

// Compiled for several instruction sets, selected at load. Products are never contracted with additions (no fused multiply-add), so that
// ranks with different processors agree bitwise.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTOR_LOOP                                                        \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default"), \
                 optimize("O3", "fp-contract=off", "no-math-errno", "no-trapping-math")))
#else
#define COHORT_VECTOR_LOOP
#endif

namespace cohort {

// Sums of several ranks' gradients in tiles that stay in the first-level cache.

/// For tiles of [0, count): sum = ((arrays[0] + arrays[1]) + arrays[2]) + ... element by element, then use(offset of the tile, its length,
/// sum). A single array is passed on whole. Type Float or Double.
void for_each_tile_sum(const std::vector<std::byte*>& arrays, int64_t count, at::ScalarType type,
                       const std::function<void(int64_t offset, int64_t count, const void* sum)>& use);

/// sum += other.
void add_to(float* sum, const float* other, int64_t count);

/// Sum of squares in double precision, in an order that depends on `count` only.
double squared_norm(const void* values, int64_t count, at::ScalarType type);

}  // namespace cohort
