#pragma once
// Sums of several ranks' gradients in tiles that stay in the first-level cache, handed on before they leave it.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace cohort {

/// For tiles of [0, count): sum = ((arrays[0] + arrays[1]) + arrays[2]) + ... element by element, then use(offset of the tile, its length,
/// sum). One array is handed on as it is, whole. Type Float or Double.
void for_each_tile_sum(const std::vector<std::byte*>& arrays, int64_t count, at::ScalarType type,
                       const std::function<void(int64_t offset, int64_t count, const void* sum)>& use);

/// Sum of squares in double precision, in an order that depends on `count` alone.
double squared_norm(const void* values, int64_t count, at::ScalarType type);

}  // namespace cohort
