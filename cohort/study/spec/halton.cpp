// Halton's sequence on the first primes (Halton 1960; quasi-random search: Bousquet et al. 2017, 1706.03200).
//
//   coordinate d of point i = sum_k permutation_d(digit_k of i + 100 in base p_d) / p_d^k + shift_d, modulo 1
//
// The permutation of each base's digits breaks the correlation between large bases, in which the plain sequence walks along a diagonal; 0
// may move too, so the digits above the leading one count: as many are taken as a double holds. The shift moves all points alike, modulo 1,
// which makes each of them uniform. The first 100 points are skipped: early points of large bases are small multiples of 1 / p. Permutation
// and shift of a dimension depend on (seed, dimension) alone, so fewer dimensions give the first coordinates of more.

#include "cohort/study/spec/halton.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort::study {
namespace {

constexpr int kPrimes[] = {2,  3,  5,  7,  11, 13, 17, 19, 23, 29,  31,  37,  41,  43,  47,  53,
                           59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131};
constexpr int kMaxDimensions = static_cast<int>(std::size(kPrimes));
constexpr int64_t kSkipped = 100;
constexpr double kResolution = 0x1p-53;
enum Stream : uint64_t { kPermutationStream = 1, kShiftStream };

/// Fisher and Yates' shuffle of 0, 1, ... base - 1.
std::vector<int> draw_permutation(int base, uint64_t seed, int dimension) {
  std::vector<int> digits(static_cast<size_t>(base));
  std::iota(digits.begin(), digits.end(), 0);
  for (size_t left = digits.size(); left > 1; --left)
    std::swap(digits[left - 1], digits[random_bits(seed, kPermutationStream, dimension, left) % left]);
  return digits;
}

double permuted_radical_inverse(int64_t index, const std::vector<int>& permutation) {
  const int64_t base = std::ssize(permutation);
  double value = 0;
  for (double place = 1.0 / static_cast<double>(base); place >= kResolution; place /= static_cast<double>(base), index /= base)
    value += place * permutation[static_cast<size_t>(index % base)];
  return value;
}

}  // namespace

Halton::Halton(int num_dimensions, uint64_t seed) {
  if (num_dimensions < 1 || num_dimensions > kMaxDimensions)
    fail(ErrorCode::kBadInput, "a Halton sequence of ", num_dimensions, " dimensions: expected 1 to ", kMaxDimensions);
  for (int dimension = 0; dimension < num_dimensions; ++dimension) {
    permutations_.push_back(draw_permutation(kPrimes[dimension], seed, dimension));
    shifts_.push_back(unit_interval(random_bits(seed, kShiftStream, dimension)));
  }
}

std::vector<double> Halton::point(int64_t index) const {
  std::vector<double> point;
  for (size_t dimension = 0; dimension < shifts_.size(); ++dimension) {
    const double shifted = permuted_radical_inverse(index + kSkipped, permutations_[dimension]) + shifts_[dimension];
    point.push_back(shifted - std::floor(shifted));
  }
  return point;
}

}  // namespace cohort::study
