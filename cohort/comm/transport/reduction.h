#pragma once
// How an all-reduce combines what the ranks have.

#include <cstdint>

namespace cohort {

enum class Reduction : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

}  // namespace cohort
