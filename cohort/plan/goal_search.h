#pragma once
// The search for the time to a goal with 1, 2, 4, ... workers, and with plain data parallelism.

#include <functional>
#include <optional>
#include <vector>

#include "cohort/plan/search/search_machines.h"
#include "cohort/plan/time_to_goal.h"

namespace cohort {

struct GoalAnswer {
  PlanAnswer answer;  ///< With all workers that there may be.
  TimeToGoal goal;    ///< Rows, chosen and plain; the rest is the curve's (study/goal_curve.h).
};

/// On request.problem.cluster. `every_point`: what plain data parallelism may choose from where no batch of the request's curve has a
/// sample for each worker. All searches together take request.search_seconds; at `stop` the rows that were found remain. Errors as
/// search_plan() for all workers.
GoalAnswer search_to_goal(const SearchRequest& request, const std::vector<StepsPoint>& every_point,
                          const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop);

/// Of what search_machines() found: a row a machine. `seconds`: for plain data parallelism on the largest.
TimeToGoal goal_of_machines(const MachineAnswer& found, const std::vector<StepsPoint>& every_point, double seconds,
                            const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop);

}  // namespace cohort
