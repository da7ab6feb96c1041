#pragma once
// trace.json: one step as it was forecast and as it went, in the format of chrome://tracing, which Perfetto opens. Torch-free.

#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/forecast_record.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

struct TraceSpan {
  std::string name, category;  ///< "F1.0", "forward".
  double start = 0, end = 0;   ///< Seconds from the beginning of the step.
};
using TraceLanes = std::vector<std::vector<TraceSpan>>;  ///< One a rank.

/// The schedule's actions where there is a timeline of it (`passes` times), else forward and backward of each rank as one block; then the
/// exchange that nothing hides, and the update.
TraceLanes predicted_lanes(const ForecastRecord& forecast, const Timeline& timeline, int passes, int num_ranks);

/// Lanes that are empty on all ranks are left out, with their group.
Json run_trace(const TraceLanes& predicted, const TraceLanes& measured, const std::string& measured_name);

}  // namespace cohort
