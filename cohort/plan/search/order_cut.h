#pragma once
// The best plan in which each accelerator has a run of the items in a given order.

#include <vector>

#include "cohort/plan/search/load_problem.h"

namespace cohort {

/// Items that only a CPU core can run go to the first one. Memory is kept where it can be; the answer fits where any cut of the order does.
Placement cut_order(const LoadProblem& problem, const std::vector<int>& order);

}  // namespace cohort
