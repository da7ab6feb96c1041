#include "cohort/study/goal/goal_worth.h"

#include "cohort/study/analysis/worth.h"

namespace cohort::study {

void add_worth(const GoalCurve& curve, TimeToGoal& goal) {
  goal.goal = curve.goal, goal.source = curve.source, goal.curve = curve.sentence();
  goal.flat_from = curve.flat_from, goal.left_out = curve.left_out;
  std::vector<StepTime> times;
  for (const GoalRow& row : goal.rows)
    if (row.plan) {
      const StepForecast& step = row.plan->forecast;
      times.push_back({row.plan->global_batch, row.num_workers, step.step_seconds, step.low_seconds, step.high_seconds});
    }
  const Worth worth = worth_of_workers(curve.rows, times);
  goal.num_worth_having = worth.rows.empty() ? 0 : worth.num_worth_having;
  for (GoalRow& row : goal.rows)
    for (const WorthRow& one : worth.rows)
      if (row.plan && one.num_workers == row.num_workers) row.speed_up = one.speed_up;
}

}  // namespace cohort::study
