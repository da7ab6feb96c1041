#pragma once
// Steps to a goal by batch size for the planner, from a study's folder or a file, with the flat point above which no batch is chosen for
// speed.

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
  std::string goal;                  ///< "val_error<0.12"; "" where unknown.
  std::vector<StepsToResult> rows;   ///< The batch sizes that reached the goal, in increasing order.
  std::optional<int64_t> flat_from;  ///< The flat point; none where steps fall up to the largest batch size.
  std::vector<int64_t> left_out;     ///< Batch sizes above it that need no significantly fewer steps.

  /// The points that a plan for speed may choose from, and all points.
  std::vector<GoalSteps> useful_points() const;
  std::vector<GoalSteps> all_points() const;
  /// "batches above 64 need no fewer steps (...)", or that steps still fall at the largest.
  std::string sentence() const;
};

/// Reads a study's folder: steps_curve.csv of its report, else its store at its first goal; `goal` receives the goal. Error(kBadInput)
/// where it has neither.
std::vector<StepsToResult> steps_of_study(const std::string& folder, std::string* goal);
/// The curve of steps_of_study(). Error(kBadInput) also where no batch size reached the goal.
GoalCurve curve_of_study(const std::string& folder);
/// Reads steps_curve.csv (docs/formats/steps_curve.md), or its first two columns alone. Error(kBadInput) with file, line and problem.
GoalCurve read_goal_curve(const std::string& path);
/// Finds the flat point; rows without steps are omitted.
GoalCurve goal_curve(std::string source, std::string goal, const std::vector<StepsToResult>& rows);

/// Sets the fields of TimeToGoal that follow from the curve: goal, source, flat point, speed-ups, and the number of workers worth having by
/// the rule of worth.h.
void add_worth(const GoalCurve& curve, TimeToGoal& goal);

}  // namespace cohort::study
