#pragma once
// A placement made better by many small random changes.

#include <cstdint>
#include <functional>

#include "cohort/plan/search/load_problem.h"

namespace cohort {

struct AnnealOptions {
  int64_t steps = 100'000;
  double hot = 0.03;       ///< Largest rise of the load that is often accepted, as a share of it: in the beginning,
  double cold = 0.0002;    ///< and in the end.
  double mean_weight = 1;  ///< Of the accelerators' mean load beside the largest.
  uint64_t seed = 1;       ///< The same seed gives the same answer.
  double goal = 0;         ///< A load that ends the search.
  double deadline = 0;     ///< steady_seconds() at which it ends; 0: none.
};

/// The best placement seen that fits, by largest load; `start` where none is better. `start` need not fit.
Placement anneal_loads(const LoadProblem& problem, const Placement& start, const AnnealOptions& options);

}  // namespace cohort
