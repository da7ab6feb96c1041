#pragma once
// The time to a goal by number of workers: time and price of each number, how many are worth having, and plain data parallelism for
// comparison; its text and JSON. Torch-free. study/goal_curve.h adds which workers are worth having.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/search/joint_search.h"

namespace cohort {

struct GoalRow {
  int num_workers = 1;             ///< Upper limit; the plan may use fewer.
  std::optional<RankedPlan> plan;  ///< Empty where none was found.
  double speed_up = 0;             ///< Relative to the first row with a plan.
};

struct TimeToGoal {
  std::string goal, source;          ///< "val_error<0.12", "" where not known; folder or file of the curve.
  std::string curve;                 ///< A sentence about the flat part; "" where unknown.
  std::optional<int64_t> flat_from;  ///< Batch size; empty where steps fall to the end.
  std::vector<int64_t> left_out;     ///< Batch sizes that were not searched.
  RankedPlan chosen;                 ///< The chosen plan.
  std::vector<GoalRow> rows;         ///< Ascending workers.
  int num_worth_having = 0;          ///< Workers up to here are worth having; 0: no row has a plan.
  int plain_workers = 0;             ///< Workers of the plain plan; 0: not searched.
  std::optional<RankedPlan> plain;   ///< Plain data parallelism over all workers at its own best batch; empty: it cannot run.
};

/// Steps to the goal of a plan for kTimeToGoal.
double steps_of(const RankedPlan& plan);
/// Worker-hours of all ranks to the goal.
double worker_hours(const RankedPlan& plan);
/// The layout as --layout takes it, without default values.
std::string short_layout(const ModelProfile& profile, const RankedPlan& plan);

/// A row for each number of workers.
std::string goal_table(const ModelProfile& profile, const TimeToGoal& goal);
/// Sentences on time, price, the flat point, the gain of more workers, and the savings against plain data parallelism.
std::vector<std::string> goal_sentences(const ModelProfile& profile, const TimeToGoal& goal);
Json to_json(const ModelProfile& profile, const TimeToGoal& goal);

// The search for the time to a goal with 1, 2, 4, ... workers, and with plain data parallelism.

struct GoalAnswer {
  PlanAnswer answer;  ///< The plan with the most workers allowed.
  TimeToGoal goal;    ///< Rows, chosen and plain; the rest is the curve's (study/goal_curve.h).
};

/// Searches request.problem.cluster. Plain data parallelism may choose from `every_point` where no batch of the request's curve has a
/// sample for each worker. All searches together take request.search_seconds; at `stop` the rows found so far remain. Errors are those of
/// search_plan() for all workers.
GoalAnswer search_to_goal(const SearchRequest& request, const std::vector<GoalSteps>& every_point,
                          const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop);

/// A row for each machine of search_machines(). `seconds` is the time to search for plain data parallelism on the largest.
TimeToGoal goal_of_machines(const MachineAnswer& found, const std::vector<GoalSteps>& every_point, double seconds,
                            const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop);

}  // namespace cohort
