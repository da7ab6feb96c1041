#pragma once
// How a step through the pipeline should go, from what was measured of the layers and the schedule that will run: the forecast that a run
// prints beside its measurement.

#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/job/layout.h"
#include "cohort/models/layer_graph.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/plan/profile.h"

namespace cohort {

struct PipelineForecast {
  struct Stage {
    std::vector<std::string> layers;
    int worker = 0;              ///< Place on the pipeline axis.
    double forward_seconds = 0;  ///< Of a micro-batch; input and weight part as the schedule may divide them.
    double backward_input_seconds = 0, backward_weight_seconds = 0;
  };
  std::string schedule;  ///< As the layout names it.
  int num_micro_batches = 0;
  std::vector<Stage> stages;
  double step_seconds = 0;  ///< Forwards and backwards of one pass through the schedule.
  double bubble = 0;        ///< Idle time / (ranks x step).
  std::string chart_svg;    ///< timeline_svg().
};

/// `recompute`: one flag a layer, or empty. Error(kBadInput) for a schedule that does not fit the stages.
COHORT_PROGRAM_API PipelineForecast forecast_pipeline(const LayerGraph& model, const Profile& profile, const Layout& layout,
                                                      const StageAssignment& stages, const std::vector<bool>& recompute);

/// Its step_seconds alone.
double forecast_step_seconds(const LayerGraph& model, const Profile& profile, const Layout& layout, const StageAssignment& stages,
                             const std::vector<bool>& recompute);

/// The event "pipeline" of metrics.jsonl (docs/formats/metrics.md).
Json to_json(const PipelineForecast& forecast);
/// Of what to_json() wrote.
PipelineForecast pipeline_forecast_from_json(const Json& json);
/// What each stage got, for people: one line a stage, times in ms.
std::string describe(const PipelineForecast& forecast);

}  // namespace cohort
