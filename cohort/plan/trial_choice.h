#pragma once
// Which plans are tried where forecasts can not tell them apart, and which of those wins. Torch-free.

#include <cstddef>
#include <vector>

#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// Before: fewer ranks, no recompute, no compression, no accumulation, a round number of pieces, no model parallelism, less ZeRO.
bool is_simpler(const RankedPlan& a, const RankedPlan& b);

/// The plan with a power of two as `accumulate` where that fits and is forecast to take at most a hundredth longer; else `plan`.
RankedPlan with_round_accumulate(const PlanProblem& problem, RankedPlan plan);

/// Indices of at most `most` of `plans` (best first), the first of each kind: degrees, ZeRO, schedule, precision, compression, batch and
/// shares. Of plans of one kind whose forecasts are a hundredth apart the simplest.
std::vector<size_t> different_plans(const std::vector<const RankedPlan*>& plans, size_t most);

/// Index of the simplest plan whose measured cost is at most kNoiseFloor above the least. `costs`: one a plan; infinite: it failed.
size_t winner_of_trials(const std::vector<const RankedPlan*>& plans, const std::vector<double>& costs);

}  // namespace cohort
