#pragma once
// How many damaged inputs a test tries.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace cohort::testing {

/// `few` in the daily tests; COHORT_MUTATIONS=1000000 asks for as many.
inline uint64_t mutation_count(uint64_t few) {
  const char* const asked = std::getenv("COHORT_MUTATIONS");
  return asked ? std::max<uint64_t>(1, std::strtoull(asked, nullptr, 10)) : few;
}

}  // namespace cohort::testing
