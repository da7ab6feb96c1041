#pragma once
// The arithmetic of a sum over ranks: adds the same range of several arrays in order and writes the result into all of them.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace cohort {

/// For i in [0, count): s = ((arrays[0][i] + arrays[1][i]) + arrays[2][i]) + ...; arrays[*][i] = s. Elements are of `type`; the arrays do
/// not overlap. One pass: reads and writes each element of each array once.
void sum_in_place(const std::vector<std::byte*>& arrays, size_t count, at::ScalarType type);

/// sum[i] = ((arrays[0][i] + arrays[1][i]) + ...), `sum` apart from the arrays.
void sum_into(void* sum, const std::vector<const std::byte*>& arrays, size_t count, at::ScalarType type);

}  // namespace cohort
