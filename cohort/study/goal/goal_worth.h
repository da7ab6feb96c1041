#pragma once
// What of a curve and of plans for 1, 2, 4, ... workers follows for the one who pays: speed-up, and how many workers are worth having.

#include "cohort/plan/time_to_goal.h"
#include "cohort/study/goal/goal_curve.h"

namespace cohort::study {

/// Fills in what time_to_goal.h takes from the curve: its goal, source and flat point, speed-ups, and the number of workers worth having,
/// by the rule of worth.h.
void add_worth(const GoalCurve& curve, TimeToGoal& goal);

}  // namespace cohort::study
