#pragma once
// `cohort plan --study DIR` and `--steps-curve FILE`: the time to a goal. Internal to this folder.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/study/goal_curve.h"

namespace cohort {

/// With --study: model, data, optimizer, context and precision as the study had them, as if they had been given; batch and threads too.
/// Error(kBadInput) where something that was given contradicts it. Without: as they are.
Arguments with_study(const Arguments& given);

/// Of --study or --steps-curve; nothing without. Error(kBadInput) beside another objective or a batch that is given.
std::optional<study::GoalCurve> curve_of(const Arguments& arguments);

/// Searches for the time to the goal: `plan` gets request, answer and goal; its reasons begin with what is said of the goal.
void plan_to_goal(const study::GoalCurve& curve, bool has_cluster, int most_workers,
                  const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop, Plan& plan);

}  // namespace cohort
