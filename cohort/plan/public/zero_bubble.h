#pragma once
// The settings of the zero-bubble paper as instances (zero_bubble.cpp; docs/guide/bench.md, Plan).

#include <string>
#include <vector>

#include "cohort/plan/public/public_instance.h"

namespace cohort {

/// One answer a row: the bubble of the longest stage of a schedule with one stage a rank, within `options.memory_bytes`, which counts
/// activations of one micro-batch here (default: twice the stages). The plan has the order of each stage, the same as a schedule file
/// ("table"), and the bubbles of other schedules. Errors as in public_instance.h.
COHORT_PROGRAM_API std::vector<InstanceAnswer> solve_zero_bubble(const std::string& path, const InstanceOptions& options);

}  // namespace cohort
