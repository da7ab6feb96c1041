#pragma once
// Bounds of the search space that the best trials lie at, and where to move them.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/hyperparameter.h"

namespace cohort::study {

/// Why an end of a hyperparameter is reported.
enum class BoundReason {
  kBest,      ///< The trial with the fewest steps lies there.
  kNearest,   ///< No trial reached the goal, and the nearest one lies there.
  kFeasible,  ///< No trial reached the goal, all that count lie in the quarter at that end, and those elsewhere diverged.
  kDiverged,  ///< All trials diverged; only for the lower end of the learning rate.
};

/// Good trials of a batch size lie at one end of a hyperparameter: within 5 % (in units of the search), or at the first or last of a list
/// of numbers.
struct BoundHit {
  size_t index = 0;         ///< Index into the space.
  bool at_maximum = false;  ///< At the maximum of the value, else at the minimum.
  BoundReason reason = BoundReason::kBest;
  int64_t trial_id = -1;       ///< The best, or the nearest; -1 where all diverged.
  double end = 0;              ///< The value at that end.
  double best_value = 0;       ///< Value of that trial.
  double widened = 0;          ///< Proposed new end; for a list the last of `beyond`.
  std::vector<double> beyond;  ///< Values to add to a list, in outward order.
  int64_t num_neighbours = 0;  ///< Other trials within 10 % of that end, or nearer to it than the best.
  int64_t num_infeasible = 0;  ///< Diverged ones among the neighbours.
  bool is_wall = false;        ///< The maximum learning rate, where nearly all neighbours diverged: not to be widened.
  double chance_of_trend = 1;  ///< One-sided p that results get worse with the distance from that end by chance.
  bool is_only_one = false;    ///< No other hyperparameter is searched.
  /// Evidence of an optimum beyond the end, rather than of a hyperparameter without effect.
  bool is_evidence() const;
};

/// Excludes ends that cannot be moved (0 and 1 where the valid range ends) and lists that are not numbers.
std::vector<BoundHit> bounds_touched(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);

/// A list of at least three numbers, which has two ends. Texts of an archive are stored as 0, 1, 2, ... and have no order.
bool is_number_list(const Hyperparameter& parameter);
/// Two more values at one end of such a list, as far apart as its values are on average (in x, or in its logarithm where they span a
/// decade, or in log(1 - x) towards 1); fewer where the valid range ends.
std::vector<double> values_beyond(const Hyperparameter& parameter, bool at_maximum);

/// The end moved by one decade (log of x or of 1 - x) or half the width (linear); none where the valid range ends there.
std::optional<double> widened_end(const Hyperparameter& parameter, bool at_maximum);

/// Four significant digits, whole numbers in full.
std::string short_number(double value);
/// The same, near 1 with four digits of 1 - value: 0.99999, not 1.
std::string value_text(double value);

/// Probability that `y` rises with `x` at least this clearly if the two are independent: one-sided p of Kendall's rank correlation
/// (normal approximation with ties, fair from 5 pairs on). 1 for fewer than 5 pairs, or where all x or all y are equal.
/// Infinite values rank last. O(n^2).
double chance_of_rise(std::span<const double> x, std::span<const double> y);

}  // namespace cohort::study
