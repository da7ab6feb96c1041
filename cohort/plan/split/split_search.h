#pragma once
// Dynamic programming over (layers placed, stages used) where every stage has a rank of its own.

#include <limits>
#include <optional>
#include <vector>

#include "cohort/plan/split/split_costs.h"

namespace cohort {

enum class SplitGoal {
  kBottleneck,  ///< Least seconds of the slowest stage.
  kTransfers,   ///< Least sum of the stages' transfers.
  kMemory,      ///< Least memory of the largest stage; limits on seconds are not looked at.
};

struct SplitLimits {
  double seconds = std::numeric_limits<double>::infinity();  ///< Of a stage.
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
};

struct FoundSplit {
  std::vector<int> first_layer;
  bool exact = true;
};

/// The best cut within the limits; empty where none is.
std::optional<FoundSplit> search_split(const SplitCosts& costs, SplitGoal goal, const SplitLimits& limits);

/// Where ranks have several stages, which are dealt to them in turn: see split_dealt.cpp. The least (bytes over the limit, bottleneck,
/// transfers) that was found.
FoundSplit search_dealt_split(const SplitCosts& costs, int64_t memory_limit_bytes, const std::vector<std::vector<int>>& starts);

}  // namespace cohort
