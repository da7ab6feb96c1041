#pragma once
// Published instances of other planners (docs/guide/bench.md, Plan): each format is read, solved and answered in its own units.

#include <string>
#include <vector>

#include "cohort/plan/search/cohort_instance.h"

namespace cohort {

/// Throws the errors of solve_cohort_instance().
InstanceAnswer solve_dnn_partitioning(const std::string& path, const InstanceOptions& options);
InstanceAnswer solve_pipedream(const std::string& path, const InstanceOptions& options);
InstanceAnswer solve_piper(const std::string& path, const InstanceOptions& options);

/// The settings of the zero-bubble paper. One answer a row: the bubble of the longest stage of a schedule with one stage a rank, within
/// `options.memory_bytes`, which counts activations of one micro-batch here (default: twice the stages). The plan has the order of each
/// stage, the same as a schedule file ("table"), and the bubbles of other schedules.
std::vector<InstanceAnswer> solve_zero_bubble(const std::string& path, const InstanceOptions& options);

}  // namespace cohort
