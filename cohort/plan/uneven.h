#pragma once
// What equal shares of the batch would cost on devices that are not equally fast, beside the shares of a plan. Torch-free.

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/search/search_machines.h"

namespace cohort {

struct UnevenForecast {
  std::vector<double> shares;  ///< Of the plan, one a rank; they add up to 1.
  double step_seconds = 0, waste = 0;
  double equal_step_seconds = 0, equal_waste = 0;  ///< With equal shares and all else as in the plan.
};

/// The share of the ranks' seconds in which they wait for the slowest to have computed, in a step of `step_seconds`; one of
/// `compute_seconds` a rank.
double waiting_share(const std::vector<double>& compute_seconds, double step_seconds);

/// Waste: the share of the ranks' seconds in which they wait for the slowest to have computed. None where the plan is not dp alone over
/// devices of several kinds.
std::optional<UnevenForecast> uneven_forecast(const PlanProblem& problem, const RankedPlan& plan);

std::string sentence_of(const UnevenForecast& uneven);
/// Why machines with more workers than the one that was taken are slower, where it is that those are not equally fast.
std::vector<std::string> sentences_of_larger(const MachineAnswer& found);
Json to_json(const UnevenForecast& uneven);

}  // namespace cohort
