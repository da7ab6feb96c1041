#pragma once
// What a study searches over, and the map between the unit cube and it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cohort::study {

/// One searched number: learning_rate, momentum, ... (spec.h lists the names that a trial knows).
struct Metaparameter {
  enum class Type { kDouble, kInteger, kDiscrete };
  enum class Scale { kLinear, kLog, kReverseLog };  ///< Uniform in x, in log x, in log(1 - x).
  std::string name;
  Type type = Type::kDouble;
  Scale scale = Scale::kLinear;
  double minimum = 0, maximum = 0;  ///< kDouble, kInteger: both ends belong to it.
  std::vector<double> values;       ///< kDiscrete: any order; one value fixes the metaparameter.
};
using SearchSpace = std::vector<Metaparameter>;
/// Values by name.
using Parameters = std::map<std::string, double>;

/// Error(kBadInput) naming the metaparameter: ends in the wrong order or not finite, a log scale that reaches 0, a reverse-log scale that
/// reaches 1, no values.
void check_metaparameter(const Metaparameter& parameter);

/// Where `unit` in [0, 1] lies: kLog rises; kReverseLog falls, from maximum at 0 to minimum at 1 (the published direction: [0.9, 0.9999] is
/// 0.9999, 0.99684, 0.9 at 0, 0.5, 1). Integers and choices have cells of equal size (integers on their scale).
double value_at(const Metaparameter& parameter, double unit);
/// The other way, for choices and integers the middle of the cell; values outside of the space count as its nearest end or choice.
double unit_of(const Metaparameter& parameter, double value);

Parameters point_at(const SearchSpace& space, const std::vector<double>& units);

/// "double", "log", ...: names of specs; the archive's names ("DOUBLE", "LOG_SCALE") are archive.cpp's.
const char* name_of(Metaparameter::Type type);
const char* name_of(Metaparameter::Scale scale);

// Quasi-random points: Halton's sequence on the first primes, digits permuted, shifted.

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
