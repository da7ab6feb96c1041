#pragma once
// A Plan: what was chosen, who holds what, what it should cost, and why: plan.json (docs/formats/plan.md). Torch-free.

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/record/forecast_record.h"

namespace cohort {

struct Plan {
  SearchRequest request;  ///< What was asked, without profile and cluster when it comes from a file.
  PlanAnswer answer;
  std::vector<std::string> reasons;  ///< Sentences: why this one, what binds, what ties, what would change it.
  std::optional<TimeToGoal> goal;    ///< Where the objective is the time to a goal.
};

/// The layout of a ranked plan as a run takes it: stages and recompute by name, precision, accumulate and the rest.
Layout layout_of(const ModelProfile& profile, const RankedPlan& plan);
/// Of the best plan: ranks of a place on the pipeline axis, rising.
std::vector<int> ranks_of_worker(const Plan& plan, int worker);
/// Where the interval of the best plan's step is from: "default", or "calibration: 5 runs of fc as dp".
std::string interval_source(const Plan& plan);
Json to_json(const Plan& plan);

// The forecast of a plan as a run records it. Torch-free.

/// Of what plan.json holds (docs/formats/plan.md); nothing where it has no forecast, as a bare layout has none. `where` names the file in
/// errors. Error(kBadInput) for values of the wrong kind.
std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where);

}  // namespace cohort
