#pragma once
// The oracle of transports: every operation against an answer computed without any exchange. For tests.

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <vector>

#include "cohort/comm/transport.h"

namespace cohort {

struct OracleOptions {
  /// Elements a piece: nothing, one, primes, and around the sizes at which algorithms change.
  std::vector<size_t> counts = {0, 1, 7, 45, 46, 47, 1009};
  /// Moved by every operation; those that are neither bool nor complex are also summed.
  std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,    at::kLong,
                                       at::kInt,   at::kByte,   at::kBool, at::kComplexFloat};
  bool from_any = true;  ///< Whether the transport receives from any rank.
};

/// Makes every call of the product operations x types x counts (x roots, and reductions for two of the types), in place and apart, and
/// messages between all pairs. Collective. std::runtime_error that names the first wrong call. Values are small whole numbers, so that
/// every order of summation gives the same bits. Returns the number of calls.
size_t check_transport(Transport& transport, const OracleOptions& options = {});

}  // namespace cohort
