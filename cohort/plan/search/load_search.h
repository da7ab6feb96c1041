#pragma once
// The plan with the least largest load that the search finds, and what no plan can be below.

#include <optional>

#include "cohort/plan/search/load_bound.h"
#include "cohort/plan/search/load_problem.h"

namespace cohort {

struct LoadSearchOptions {
  int64_t steps = 0;           ///< Of annealing; 0: by the number of items. They count, not seconds, so that answers repeat.
  double search_seconds = 10;  ///< At most.
  uint64_t seed = 1;
};

struct LoadAnswer {
  Placement placement;
  double largest_load = 0;
  Bound bound;
  bool optimal = false;
};

/// `order`: the items as they come one after the other. nullopt where nothing was found that fits.
std::optional<LoadAnswer> search_loads(const LoadProblem& problem, const std::vector<int>& order, const LoadSearchOptions& options);

}  // namespace cohort
