#pragma once
// The search space of a study, and the map from the unit cube to it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cohort::study {

/// One searched number: learning_rate, momentum, ... (the names: trial_parameters() in spec.h).
struct Hyperparameter {
  enum class Type { kDouble, kInteger, kDiscrete };
  enum class Scale { kLinear, kLog, kReverseLog };  ///< Uniform in x, in log x, in log(1 - x).
  std::string name;
  Type type = Type::kDouble;
  Scale scale = Scale::kLinear;
  double minimum = 0, maximum = 0;  ///< Of kDouble and kInteger, both inclusive.
  std::vector<double> values;       ///< Of kDiscrete, in any order; a single value fixes the hyperparameter.
};
using SearchSpace = std::vector<Hyperparameter>;
/// Values by name.
using Parameters = std::map<std::string, double>;
std::optional<double> find_parameter(const Parameters& parameters, const std::string& name);

/// Error(kBadInput) naming the hyperparameter where its ends are in the wrong order or not finite, a log scale reaches 0, a reverse-log
/// scale reaches 1, or there are no values.
void check_hyperparameter(const Hyperparameter& parameter);

/// The value at `unit` in [0, 1]: kLog rises; kReverseLog falls, from maximum at 0 to minimum at 1 (the published direction: [0.9, 0.9999]
/// is 0.9999, 0.99684, 0.9 at 0, 0.5, 1). Integers and choices have cells of equal size (integers on their scale).
double value_at(const Hyperparameter& parameter, double unit);
/// The inverse of value_at(), for choices and integers the middle of the cell; values outside the space are clamped to the nearest end or
/// choice.
double unit_of(const Hyperparameter& parameter, double value);

Parameters point_at(const SearchSpace& space, const std::vector<double>& units);

/// The names in specs: "double", "log", ... Those of archives ("DOUBLE", "LOG_SCALE") are in parameter_configs.cpp.
const char* name_of(Hyperparameter::Type type);
const char* name_of(Hyperparameter::Scale scale);

// Quasi-random points: Halton's sequence on the first primes, digits permuted, shifted.

/// Safe to use from any thread.
class Halton {
 public:
  /// Error(kBadInput) for fewer than 1 or more than 32 dimensions.
  Halton(int num_dimensions, uint64_t seed);
  /// Point `index` (from 0) in [0, 1)^dimensions: a pure function of (dimensions, seed, index).
  std::vector<double> point(int64_t index) const;

 private:
  std::vector<std::vector<int>> permutations_;  ///< Permutations of the digits, one per dimension.
  std::vector<double> shifts_;
};

}  // namespace cohort::study
