#pragma once
// trace.json: one step as predicted and as measured, in the format of chrome://tracing (also read by Perfetto). Torch-free.

#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/forecast_record.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

struct TraceSpan {
  std::string name, category;  ///< "F1.0", "forward".
  double start = 0, end = 0;   ///< Seconds since the beginning of the step.
};
using TraceLanes = std::vector<std::vector<TraceSpan>>;  ///< One per rank.

/// The schedule's actions (`passes` times) where it has a timeline, else forward and backward of each rank as one span; then the exposed
/// exchange, and the update.
TraceLanes predicted_lanes(const ForecastRecord& forecast, const Timeline& timeline, int passes, int num_ranks);

/// A group whose lanes are all empty is left out.
Json run_trace(const TraceLanes& predicted, const TraceLanes& measured, const std::string& measured_name);

}  // namespace cohort
