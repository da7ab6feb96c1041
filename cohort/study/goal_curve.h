#pragma once
// Steps to a goal by batch size, as a plan takes them: from a study's folder or a file, with the flat point above which no batch is chosen
// for speed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::study {

struct GoalCurve {
  std::string source;                ///< The folder or file.
  std::string goal;                  ///< "val_error<0.12"; "" where the file does not say.
  std::vector<StepsToResult> rows;   ///< Of the batch sizes that reached the goal, rising.
  std::optional<int64_t> flat_from;  ///< The flat point; none where steps fall up to the largest batch size.
  std::vector<int64_t> left_out;     ///< Batch sizes above it that need no fewer steps, beyond noise.

  /// What a plan for speed may choose from, and all there are.
  std::vector<GoalSteps> useful_points() const;
  std::vector<GoalSteps> all_points() const;
  /// "batches above 64 need no fewer steps (...)", or that steps still fall at the largest.
  std::string sentence() const;
};

/// A study's folder: steps_curve.csv of its report, else its store at its first goal; `goal` receives what was to be reached.
/// Error(kBadInput) where it has neither.
std::vector<StepsToResult> steps_of_study(const std::string& folder, std::string* goal);
/// The same as a curve. Error(kBadInput) also where no batch size reached the goal.
GoalCurve curve_of_study(const std::string& folder);
/// steps_curve.csv (docs/formats/steps_curve.md), or its first two columns alone. Error(kBadInput) with file, line and what is wrong.
GoalCurve read_goal_curve(const std::string& path);
/// With the flat point found; rows without steps are left out.
GoalCurve goal_curve(std::string source, std::string goal, const std::vector<StepsToResult>& rows);

// What of a curve and of plans for 1, 2, 4, ... workers follows for the one who pays: speed-up, and how many workers are worth having.

/// Fills in what time_to_goal.h takes from the curve: its goal, source and flat point, speed-ups, and the number of workers worth having,
/// by the rule of worth.h.
void add_worth(const GoalCurve& curve, TimeToGoal& goal);

}  // namespace cohort::study
