#pragma once
// What no plan can be below.

#include <string>

#include "cohort/plan/search/load_problem.h"

namespace cohort {

struct Bound {
  double value = 0;
  std::string by;  ///< The relaxation that gave it.
};

/// The best of the cheap bounds: area, largest piece, bin packing of pieces that no plan below `most_load` divides. `most_load`: the load
/// of a plan that is there; the bound is never above it.
Bound lower_bound(const LoadProblem& problem, double most_load);

enum class LoadVerdict { kFound, kNone, kUnknown };
/// Is there a plan of at most `most_load`? By trying all, up to `most_steps`; `found` receives the plan.
LoadVerdict search_all(const LoadProblem& problem, double most_load, int64_t most_steps, Placement* found);

}  // namespace cohort
