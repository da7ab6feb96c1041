#pragma once
// From a layout to what each rank of the pipeline gets: where the model is cut, which layers recompute, how long a step should take.

#include <string>
#include <vector>

#include "cohort/base/config.h"
#include "cohort/base/json_fwd.h"
#include "cohort/base/layout.h"
#include "cohort/comm/group.h"
#include "cohort/data/source.h"
#include "cohort/models/layer_graph.h"
#include "cohort/pipeline/model_parallel.h"
#include "cohort/train/pipeline_forecast.h"

namespace cohort {

struct StagePlan {
  StageAssignment stages;             ///< Empty without pipeline workers.
  std::vector<bool> recompute;        ///< One a layer; empty: none.
  double predicted_step_seconds = 0;  ///< Forwards and backwards of a step; 0: no forecast.
  PipelineForecast pipeline;          ///< Of one micro-step; without stages where there are no pipeline workers.
  std::string table;                  ///< What each stage got, for people; empty where nothing was measured.
};

/// Collective over `group`: rank 0 measures what the layout leaves open (split=auto and branches, recompute=auto) on samples of `data`, all
/// get its plan. `model` is whole and not changed. Error on all ranks: kBadInput for a layout that does not fit the model, kInfeasible
/// where nothing fits into --memory-limit.
StagePlan plan_stages(LayerGraph& model, const Config& config, const Layout& layout, const DataSource& data, Group& group);

}  // namespace cohort
