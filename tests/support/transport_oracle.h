#pragma once
// The oracle of transports: every operation against an answer computed without any exchange. For tests.

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

struct OracleOptions {
  /// Elements a piece: nothing, one, primes, and around those up to which 4 or 8 bytes for each of 1 to 4 ranks fit into a call's frame.
  std::vector<size_t> counts = {0, 1, 7, 11, 12, 15, 16, 23, 24, 46, 47, 1009};
  std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,         at::kInt,
                                       at::kShort, at::kByte,   at::kChar, at::kBool,     at::kComplexFloat, at::kComplexDouble};
  bool from_any = true;  ///< Whether the transport receives from any rank.
};

/// Makes every call of the product operations x types x counts (x roots), in place and apart, and messages between all pairs. Sums of all
/// types and averages of floating-point ones; of the other reductions all for Float and Int, one in turn for the rest. Collective.
/// std::runtime_error that names the first wrong call. Sums and products are expected in rank order to the bit (over hosts as
/// composite_transport.h says), of values that give other bits in another order. Returns the number of calls.
size_t check_transport(Transport& transport, const OracleOptions& options = {});

}  // namespace cohort
