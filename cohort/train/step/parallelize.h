#pragma once
// What a layout makes of a model on one rank. First the plan: where the model is cut, which layers recompute, how long a step should take.
// Then which layers are divided, which are not and why. Last the model spread over ranks, with what sums its gradients and updates it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/job/layout.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/record/start_records.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/train/model/checkpoint_pieces.h"
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

// What a tensor-parallel layout makes of a model, said before training starts: which layers are divided, which are not and why.

/// Error(kBadInput) where the layout asks for a division that divides nothing.
void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout);

/// For the record of a run; its sentence is describe().
DivisionRecord division_record(const ShardPlan& plan, const Layout& layout);
/// "tp=2 divides 5 of 8 layers with 97 % of the weights; whole: norm (no rule ...)". Layers that have nothing to divide are not counted.
std::string describe(const ShardPlan& plan, const Layout& layout);

/// A model spread over ranks: what this one has of it, and with whom it exchanges.
struct SpreadModel {
  StagePlan plan;
  ShardPlan division;                          ///< Without layers where tp is 1.
  std::map<std::string, std::string> aliases;  ///< Of the whole model.
  int64_t num_parameters = 0;                  ///< Of the whole model.
  std::unique_ptr<ModelPart> part;             ///< Not null.

  ParameterPlaces places() const;
};

/// Error(kBadInput) where statistics of batch norm are to be shared and no layer has any.
void check_batch_norm(const Config& config, bool has_some);

/// And what sums its gradients and updates it.
struct ParallelModel : SpreadModel {
  std::unique_ptr<Strategy> strategy;
};

/// Cut, recompute, divide, group: leaves in `model`, which is built alike on all ranks, what is this one's. `title` names it in messages.
/// Collective. `model` must outlive the result. Error on all ranks: kBadInput for a layout that the model does not fit, kInfeasible where
/// nothing fits into the memory limit.
SpreadModel spread_model(LayerGraph& model, const StageRequest& request, Group& group, const std::string& title);

struct ParallelizeOptions {
  bool checks_pieces = true;      ///< Error for pieces of a step that this model's batch norm makes one again.
  bool shares_batch_norm = true;  ///< false: batch norm stays each rank's own where the job asks for that over ranks.
  /// Called with this rank's part before batch norm and the strategy come to it; may be empty.
  std::function<void(LayerGraph&, ModelPart&)> alter_part = {};
};

/// All of it for a training: spread_model(), batch norm over ranks, the shares of the batch, the strategy. Collective; errors as those of
/// spread_model(), and kBadInput where a rank's share of the batch would be empty.
ParallelModel parallelize(LayerGraph& model, const Job& job, const DataSet& data, Group& group, const ParallelizeOptions& options = {});

/// How many pieces a step has: where a norm keeps samples together it may be fewer than accumulate x microbatches.
int64_t num_pieces(const Job& job, const LayerGraph& model, const DataSet& data);

}  // namespace cohort
