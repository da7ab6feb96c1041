#pragma once
// How a step through the pipeline should go, from what was measured of the layers and the schedule that will run: the forecast that a run
// prints beside its measurement.

#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/record/start_records.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// What StageAssignment::seconds should be: the costs of the stages, where the schedule splits the backward and its order may follow them.
/// Empty else, as where two stages of one worker share a weight: the order in which their gradients add up would depend on the clock.
StageSeconds ordering_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                              const std::vector<bool>& recompute);

/// `recompute`: one flag a layer, or empty. Error(kBadInput) for a schedule that does not fit the stages.
COHORT_PROGRAM_API PipelineRecord forecast_pipeline(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                                                    const std::vector<bool>& recompute);

/// Its predicted_step_seconds alone.
double forecast_step_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                             const std::vector<bool>& recompute);

/// What each stage got, for people: one line a stage, times in ms.
std::string describe(const PipelineRecord& forecast);

}  // namespace cohort
