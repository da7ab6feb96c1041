#pragma once
// Bounds of the search space that best trials lie at, and where to move them.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/study/analysis/steps_to_result.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/metaparameter.h"

namespace cohort::study {

/// Why an end of a metaparameter is looked at.
enum class BoundReason {
  kBest,      ///< The trial with the fewest steps lies there.
  kNearest,   ///< No trial reached the goal, and the one that came nearest lies there.
  kFeasible,  ///< No trial reached the goal, all that count lie in the quarter at that end, and those elsewhere diverged.
  kDiverged,  ///< All trials diverged: the lower end of the learning rate.
};

/// Good trials of a batch size lie at one end of a metaparameter: within 5 % (in units of the search), or at the first or last of a list
/// of numbers.
struct BoundHit {
  size_t index = 0;         ///< Into the space.
  bool at_maximum = false;  ///< Of the metaparameter's value; else at the minimum.
  BoundReason reason = BoundReason::kBest;
  int64_t trial_id = -1;       ///< The best, or the nearest; -1 where all diverged.
  double end = 0;              ///< The value at that end.
  double best_value = 0;       ///< Of that trial.
  double widened = 0;          ///< Where the end should be moved: of a list the last of `beyond`.
  std::vector<double> beyond;  ///< Values to add to a list, in its direction.
  int64_t num_neighbours = 0;  ///< Other trials within 10 % of that end, or nearer to it than the best.
  int64_t num_infeasible = 0;  ///< Of those.
  bool is_wall = false;        ///< The maximum learning rate, and nearly all neighbours diverged: no bound to widen.
  double chance_of_trend = 1;  ///< One-sided p that results get worse with the distance from that end by chance.
  bool is_only_one = false;    ///< No other metaparameter is searched.
  bool is_evidence() const;    ///< Of an optimum beyond the end, not of a metaparameter that does not matter.
};

/// Ends that cannot be moved (0 and 1 where the metaparameter ends there by nature) do not count, nor do choices that are no numbers.
std::vector<BoundHit> bounds_touched(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);

/// At least three numbers to choose from: it has a first and a last. Texts of an archive count 0, 1, 2, ... and have no order.
bool is_ladder(const Metaparameter& parameter);
/// Two more values at one end of a ladder, as far apart as its values are on average (in x, or in its logarithm where they span a decade,
/// or in log(1 - x) towards 1); fewer, or none, where the metaparameter ends by nature.
std::vector<double> values_beyond(const Metaparameter& parameter, bool at_maximum);

/// By one decade (log of x or of 1 - x) or half the width (linear); none where the metaparameter ends there by nature.
std::optional<double> widened_end(const Metaparameter& parameter, bool at_maximum);

/// A value with four digits; where it lies near 1 with four digits of what is missing to 1: 0.99999, not 1.
std::string value_text(double value);

/// How likely `y` rises with `x` as clearly as this if the two have nothing to do with each other: one-sided p of Kendall's rank
/// correlation (normal approximation with ties, fair from 5 pairs on). 1 for fewer than 5 pairs, or where all x or all y are equal.
/// Infinite values rank last. O(n^2).
double chance_of_rise(std::span<const double> x, std::span<const double> y);

}  // namespace cohort::study
