#pragma once
// The best chain of stages on two levels of machines, PipeDream's objective, level by level, over a family of downsets.

#include <vector>

#include "cohort/plan/search/replicated_stages.h"

namespace cohort {

/// A stage of the outer level: a chain of stages on one box, on several boxes alike.
struct NestedStage {
  int replicas = 1;
  std::vector<ReplicatedStage> stages;
};

struct NestedSearch {
  std::vector<NestedStage> stages;
  double objective = 0;
  double proven_seconds = 0;  ///< No plan of this class over these downsets is below.
};

/// Searches between `lower_bound`, which must be proven, and the better of everything in one stage and `known`, the objective of a plan at
/// hand (infinity: none). No stages: none is better than the plan at hand.
NestedSearch search_nested_stages(const Downsets& sets, const CutCosts& costs, const MachineLevel& inner, const MachineLevel& outer,
                                  double lower_bound, double known, SearchClock::time_point deadline);

}  // namespace cohort
