#pragma once
// The arithmetic of reductions over ranks: combines the same range of several arrays in rank order and writes the result to one or more
// places.

#include <c10/core/ScalarType.h>

#include <cstddef>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Throws Error(kBadInput) with a sentence where `reduction` of `type` makes no sense or is not built: bits of floating-point numbers, the
/// larger of two complex numbers, the average of whole numbers, 8-bit floats. Depends on its arguments alone, so all ranks decide alike.
void check_reduction(Reduction reduction, at::ScalarType type);

/// For i in [0, count): r = ((arrays[0][i] op arrays[1][i]) op arrays[2][i]) op ...; results[*][i] = r. The order is that of the arrays, so
/// equal inputs give equal bits wherever and however often it runs.
///
/// Elements are of `type`. Sums and products of half and bfloat16 are carried in float and rounded once at the end; average divides at the
/// end, before that rounding. Whole numbers wrap around. Of minimum and maximum, NaN wins. For bool, sum and maximum are "or", product and
/// minimum are "and".
///
/// A result may be one of the arrays (the very same memory), else they do not overlap. One pass over each array and each result in tiles
/// that stay in the first-level cache. Same errors as check_reduction(); num_arrays and num_results at least 1.
void reduce_arrays(std::byte* const* results, size_t num_results, const std::byte* const* arrays, size_t num_arrays, size_t count,
                   at::ScalarType type, Reduction reduction);

}  // namespace cohort
