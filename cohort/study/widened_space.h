#pragma once
// Bounds of the search space that best trials lie at, and where to move them.

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/study/data.h"
#include "cohort/study/metaparameter.h"
#include "cohort/study/steps_to_result.h"

namespace cohort::study {

/// The best trial of a batch size lies within 5 % (in units of the search) of one end of a metaparameter.
struct BoundHit {
  size_t index = 0;            ///< Into the space.
  bool at_maximum = false;     ///< Of the metaparameter's value; else at the minimum.
  double best_value = 0;       ///< Of the best trial.
  double widened = 0;          ///< Where the end should be moved.
  int64_t num_neighbours = 0;  ///< Other trials within 10 % of that end, or nearer to it than the best.
  int64_t num_infeasible = 0;  ///< Of those.
  bool is_wall = false;        ///< The maximum learning rate, and nearly all neighbours diverged: no bound to widen.
  double chance_of_trend = 1;  ///< One-sided p that steps rise with the distance from that end by chance.
  bool is_only_one = false;    ///< No other metaparameter is searched.
  bool is_evidence() const;    ///< Of an optimum beyond the end, not of a metaparameter that does not matter.
};

/// Ends that cannot be moved (0 and 1 where the metaparameter ends there by nature) do not count. Empty where no trial reached the goal.
std::vector<BoundHit> bounds_touched(const BatchStudy& batch, const GoalSpec& goal, const StepsToResult& steps);

/// By one decade (log of x or of 1 - x) or half the width (linear); none where the metaparameter ends there by nature.
std::optional<double> widened_end(const Metaparameter& parameter, bool at_maximum);

}  // namespace cohort::study
