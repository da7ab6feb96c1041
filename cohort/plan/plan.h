#pragma once
// A Plan: the chosen layout, what each worker holds, its forecast and the reasons: plan.json (docs/formats/plan.md). Torch-free.

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/record/forecast_record.h"

namespace cohort {

struct Plan {
  SearchRequest request;  ///< Without profile and cluster when it comes from a file.
  PlanAnswer answer;
  std::vector<std::string> reasons;  ///< Sentences: the reasons, the limits, ties, and changes.
  std::optional<TimeToGoal> goal;    ///< Where the objective is the time to a goal.
};

/// The complete layout of a ranked plan, with stages and recompute by name.
Layout layout_of(const ModelProfile& profile, const RankedPlan& plan);
/// Ranks of a worker of the best plan, ascending.
std::vector<int> ranks_of_worker(const Plan& plan, int worker);
/// The source of the interval of the best plan's step: "default", or "calibration: 5 runs of fc as dp".
std::string interval_source(const Plan& plan);
Json to_json(const Plan& plan);

// The forecast of a plan as recorded by a run.

/// The forecast in plan.json (docs/formats/plan.md); nothing for a bare layout, which has none. `where` names the file in errors.
/// Error(kBadInput) for values of the wrong type.
std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where);

}  // namespace cohort
