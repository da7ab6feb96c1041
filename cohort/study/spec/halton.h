#pragma once
// Quasi-random points: Halton's sequence on the first primes, digits permuted, shifted.

#include <cstdint>
#include <vector>

namespace cohort::study {

/// Any thread.
class Halton {
 public:
  /// Error(kBadInput) for fewer than 1 or more than 32 dimensions.
  Halton(int num_dimensions, uint64_t seed);
  /// Point `index` (from 0) in [0, 1)^dimensions: a pure function of (dimensions, seed, index).
  std::vector<double> point(int64_t index) const;

 private:
  std::vector<std::vector<int>> permutations_;  ///< Of each dimension's digits.
  std::vector<double> shifts_;
};

}  // namespace cohort::study
