#pragma once
// The best chain of replicated stages on one or two levels of machines, PipeDream's objective, over a family of downsets.

#include <chrono>
#include <cstddef>
#include <vector>

#include "cohort/plan/cut/downsets.h"

namespace cohort {

/// Sums over the nodes of each downset, and the bytes that cross the cut after it.
struct CutCosts {
  std::vector<double> seconds, parameter_bytes, crossing_bytes;
};

/// The machines of a level.
struct MachineLevel {
  int machines = 1;
  double bytes_per_second = 1e9;

  /// Seconds of a stage without its transfers.
  double stage_seconds(double seconds, double parameter_bytes, int replicas) const {
    return (seconds + 4 * (replicas - 1.0) * parameter_bytes / (bytes_per_second * replicas)) / replicas;
  }
  double transfer_seconds(double crossing_bytes, int replicas) const { return 2 * crossing_bytes / (bytes_per_second * replicas); }
};

struct ReplicatedStage {
  size_t begin = 0, end = 0;  ///< Downsets before and after it.
  int replicas = 1;
};

struct StageSearch {
  std::vector<ReplicatedStage> stages;
  double objective = 0;       ///< Seconds of the slowest stage or transfer.
  double proven_seconds = 0;  ///< No chain over these downsets is below.
};

using SearchClock = std::chrono::steady_clock;

/// Searches between `lower_bound`, which must be proven, and the better of one stage and `known`, the objective of a plan at hand
/// (infinity: none). Ends when both meet to 1e-9 or at the deadline. No stages: none is better than the plan at hand.
StageSearch search_replicated_stages(const Downsets& sets, const CutCosts& costs, const MachineLevel& level, double lower_bound,
                                     double known, SearchClock::time_point deadline);

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

/// Plans on two levels, level by level. Searches between `lower_bound`, which must be proven, and the better of everything in one stage and
/// `known`, the objective of a plan at hand (infinity: none). No stages: none is better than the plan at hand.
NestedSearch search_nested_stages(const Downsets& sets, const CutCosts& costs, const MachineLevel& inner, const MachineLevel& outer,
                                  double lower_bound, double known, SearchClock::time_point deadline);

}  // namespace cohort
