#pragma once
// From a layout to what each rank of the pipeline gets: where the model is cut, which layers recompute, how long a step should take.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/job/layout.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/train/model/precision.h"

namespace cohort {

class LayerGraph;

struct StagePlan {
  StageAssignment stages;             ///< Empty without pipeline workers.
  std::vector<bool> recompute;        ///< One a layer; empty: none.
  double predicted_step_seconds = 0;  ///< Forwards and backwards of a step; 0: no forecast.
  PipelineRecord pipeline;            ///< Of one micro-step; without stages where there are no pipeline workers.
  std::string table;                  ///< What each stage got, for people; empty where nothing was measured.
};

/// What a model is measured on: one micro-batch.
struct StageSample {
  at::Tensor input;
  std::function<at::Tensor(const at::Tensor& output)> loss;  ///< ProfileOptions::loss.
};

/// What the cut depends on besides the model.
struct StageRequest {
  Layout layout;
  UpdateRule rule;
  Precision precision = Precision::kFp32;
  int64_t memory_limit_bytes = 0;       ///< Of a rank; 0: none.
  int num_micro_steps = 1;              ///< Times that a step goes through the pipeline.
  std::function<StageSample()> sample;  ///< Asked for where something is measured.
  std::string sample_name = {};         ///< Stands before what a layer says that cannot take it; "": nothing does.
};
/// References must live until the plan is made.
StageRequest stage_request(const LayerGraph& model, const Job& job, const DataSource& data);

/// Collective over `group`: rank 0 measures what the layout leaves open (split=auto and branches, recompute=auto), all get its plan.
/// `model` is whole and not changed. Error on all ranks: kBadInput for a layout that does not fit the model, kInfeasible where nothing fits
/// into the memory limit.
StagePlan plan_stages(LayerGraph& model, const StageRequest& request, Group& group);

}  // namespace cohort
