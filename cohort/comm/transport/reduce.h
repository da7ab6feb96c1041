#pragma once
// Arithmetic of reductions over ranks: combines the same range of several arrays in rank order into one or more results.

#include <c10/core/ScalarType.h>

#include <cstddef>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Error(kBadInput) where `reduction` of `type` is undefined or unsupported: bitwise on floats, order of complex numbers, average of
/// integers, 8-bit floats. Depends on its arguments only, so all ranks agree.
void check_reduction(Reduction reduction, at::ScalarType type);

/// For i in [0, count): r = ((arrays[0][i] op arrays[1][i]) op arrays[2][i]) op ...; results[*][i] = r. The order is that of the arrays, so
/// equal inputs give equal bits everywhere.
///
/// Sums and products of half and bfloat16 are computed in float and rounded once at the end; an average divides before that rounding.
/// Integers wrap around. NaN wins in minimum and maximum. For bool, sum and maximum are "or", product and minimum "and".
///
/// A result may be one of the arrays, else they do not overlap. One pass over each array and result in tiles that stay in the first-level
/// cache. Errors as check_reduction(); num_arrays and num_results are at least 1.
void reduce_arrays(std::byte* const* results, size_t num_results, const std::byte* const* arrays, size_t num_arrays, size_t count,
                   at::ScalarType type, Reduction reduction);

}  // namespace cohort
