#pragma once
// A planner instance in a file (docs/formats/instance.md), and what is asked of it and answered. Published instances of other planners,
// which `cohort bench plan` reads, have the same options and answers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json.h"

namespace cohort {

/// What overrides the values of a file; nullopt or empty: the file's own, or the format's default.
struct InstanceOptions {
  std::optional<int> devices;
  std::optional<double> memory_bytes;    ///< Of one device.
  std::vector<double> bytes_per_second;  ///< Of each level of links, inner first.
  std::vector<int> machines;             ///< Of each level, inner first: {4, 4}.
  std::optional<int> batch;              ///< Micro-batches in a batch.
  double search_seconds = 10;            ///< At most; the best plan so far is the answer then.
  uint64_t search_seed = 1;              ///< Of searches that draw.
};

struct InstanceAnswer {
  double objective = 0;    ///< In the unit of the format; smaller is better.
  double lower_bound = 0;  ///< Proven: no plan is below.
  std::string bound_by;    ///< Which relaxation gave it: "area", "critical path", "memory", "search", ...
  bool optimal = false;    ///< The plan is as good as the bound, to 1e-9 of it, or the search was exhaustive.
  double search_seconds = 0;
  Json plan;  ///< As check.py of the instances takes it.
};

/// Error(kBadInput) names the file, the place in it, what was expected and what was found; Error(kInfeasible) names
/// the constraint that nothing meets, and what would do.
COHORT_PROGRAM_API InstanceAnswer solve_cohort_instance(const std::string& path, const InstanceOptions& options);

}  // namespace cohort
