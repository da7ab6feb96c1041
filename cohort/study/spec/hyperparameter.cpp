// The map from the unit cube to a search space: scales of searched numbers, and Halton points (second half of the file).
//
//   double    x = scale^-1(a + u (b - a)), a and b the ends on the scale; reverse-log starts at the maximum
//   integer   the same between minimum - 1/2 and maximum + 1/2, rounded: on a linear scale all integers are equally likely
//   discrete  value number floor(u n)
#include "cohort/study/spec/hyperparameter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort::study {
namespace {

using Scale = Hyperparameter::Scale;
using Type = Hyperparameter::Type;

constexpr const char* kTypeNames[] = {"double", "integer", "discrete"};
constexpr const char* kScaleNames[] = {"linear", "log", "reverse-log"};
constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53

double to_scale(Scale scale, double value) {
  if (scale == Scale::kLog) return std::log(value);
  if (scale == Scale::kReverseLog) return std::log1p(-value);
  return value;
}

double from_scale(Scale scale, double position) {
  if (scale == Scale::kLog) return std::exp(position);
  if (scale == Scale::kReverseLog) return -std::expm1(position);
  return position;
}

/// The positions of units 0 and 1 on the scale.
std::pair<double, double> ends_on_scale(const Hyperparameter& parameter) {
  const double half_cell = parameter.type == Type::kInteger ? 0.5 : 0.0;
  const double low = to_scale(parameter.scale, parameter.minimum - half_cell),
               high = to_scale(parameter.scale, parameter.maximum + half_cell);
  return parameter.scale == Scale::kReverseLog ? std::pair(high, low) : std::pair(low, high);
}

double unit_on_scale(const Hyperparameter& parameter, double value) {
  const auto [first, last] = ends_on_scale(parameter);
  if (first == last) return 0.5;
  return (to_scale(parameter.scale, value) - first) / (last - first);
}

double unit_of_choice(const std::vector<double>& values, double value) {
  size_t nearest = 0;
  for (size_t i = 1; i < values.size(); ++i)
    if (std::abs(values[i] - value) < std::abs(values[nearest] - value)) nearest = i;
  return (static_cast<double>(nearest) + 0.5) / static_cast<double>(values.size());
}

void check_range(const Hyperparameter& parameter) {
  const auto& [name, type, scale, minimum, maximum, values] = parameter;
  if (!std::isfinite(minimum) || !std::isfinite(maximum))
    fail(ErrorCode::kBadInput, name, ": the ends ", minimum, " and ", maximum, " must be finite");
  if (minimum > maximum) fail(ErrorCode::kBadInput, name, ": min ", minimum, " is above max ", maximum);
  if (type == Type::kInteger) {
    for (const double end : {minimum, maximum})
      if (end != std::round(end) || std::abs(end) > kLargestExactInteger)
        fail(ErrorCode::kBadInput, name, ": an integer cannot end at ", end, "; expected a whole number of at most 2^53");
  }
  const double half_cell = type == Type::kInteger ? 0.5 : 0.0;
  if (scale == Scale::kLog && minimum - half_cell <= 0)
    fail(ErrorCode::kBadInput, name, ": a log scale cannot reach min ", minimum, "; it needs numbers above 0");
  if (scale == Scale::kReverseLog && maximum + half_cell >= 1)
    fail(ErrorCode::kBadInput, name, ": a reverse-log scale cannot reach max ", maximum, "; it needs numbers below 1");
}

}  // namespace

std::optional<double> find_parameter(const Parameters& parameters, const std::string& name) {
  const auto at = parameters.find(name);
  return at == parameters.end() ? std::nullopt : std::optional(at->second);
}

void check_hyperparameter(const Hyperparameter& parameter) {
  if (parameter.type != Type::kDiscrete) return check_range(parameter);
  if (parameter.values.empty()) fail(ErrorCode::kBadInput, parameter.name, ": there are no values to choose from");
  for (const double value : parameter.values)
    if (!std::isfinite(value)) fail(ErrorCode::kBadInput, parameter.name, ": the value ", value, " is not finite");
}

double value_at(const Hyperparameter& parameter, double unit) {
  unit = std::clamp(unit, 0.0, 1.0);
  if (parameter.type == Type::kDiscrete) {
    const size_t count = parameter.values.size();
    return parameter.values[std::min(count - 1, static_cast<size_t>(unit * static_cast<double>(count)))];
  }
  const auto [first, last] = ends_on_scale(parameter);
  double value = from_scale(parameter.scale, first + unit * (last - first));
  if (parameter.type == Type::kInteger) value = std::round(value);
  return std::clamp(value, parameter.minimum, parameter.maximum);  // Rounding may exceed an end.
}

double unit_of(const Hyperparameter& parameter, double value) {
  if (parameter.type == Type::kDiscrete) return unit_of_choice(parameter.values, value);
  value = std::clamp(value, parameter.minimum, parameter.maximum);
  if (parameter.type == Type::kDouble) return std::clamp(unit_on_scale(parameter, value), 0.0, 1.0);
  value = std::round(value);
  return (unit_on_scale(parameter, value - 0.5) + unit_on_scale(parameter, value + 0.5)) / 2;
}

Parameters point_at(const SearchSpace& space, const std::vector<double>& units) {
  if (space.size() != units.size())
    fail(ErrorCode::kBadInput, "a point of ", units.size(), " numbers in a space of ", space.size(), " hyperparameters");
  Parameters point;
  for (size_t i = 0; i < space.size(); ++i) point[space[i].name] = value_at(space[i], units[i]);
  return point;
}

const char* name_of(Hyperparameter::Type type) { return kTypeNames[static_cast<int>(type)]; }
const char* name_of(Hyperparameter::Scale scale) { return kScaleNames[static_cast<int>(scale)]; }

// Halton's sequence on the first primes (Halton 1960; quasi-random search: Bousquet et al. 2017, 1706.03200).
//
//   coordinate d of point i = sum_k permutation_d(digit_k of i + 100 in base p_d) / p_d^k + shift_d, modulo 1
//
// The permutation of each base's digits breaks the correlation between large bases, where the plain sequence lies on a diagonal; 0
// may be permuted too, so the digits above the leading one count: as many are taken as a double can hold. The shift moves all points by the
// same amount, modulo 1, which makes each of them uniform. The first 100 points are skipped: early points of large bases are small
// multiples of 1 / p. Permutation and shift of a dimension depend on (seed, dimension) alone, so fewer dimensions give the first
// coordinates of more.
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
