#pragma once
// Applies a layout to a model on one rank: the plan (where the model is cut, which layers recompute, how long a step should take), which
// layers tp divides and why others stay whole, and the model spread over ranks, with the strategy that trains it.

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
  PipelineRecord pipeline;            ///< Forecast of one micro-step; has no stages without pipeline workers.
  std::string table;                  ///< The stages, for people; empty where nothing was measured.
};

/// A micro-batch to measure a model on.
struct StageSample {
  at::Tensor input;
  std::function<at::Tensor(const at::Tensor& output)> loss;  ///< ProfileOptions::loss.
};

/// What the plan of the stages depends on besides the model.
struct StageRequest {
  Layout layout;
  UpdateRule rule;
  Precision precision = Precision::kFp32;
  int64_t memory_limit_bytes = 0;       ///< Limit per rank; 0: none.
  int num_micro_steps = 1;              ///< Runs of the pipeline in a step.
  std::function<StageSample()> sample;  ///< Called only if something is measured.
  std::string sample_name = {};         ///< Prefix of the error of a layer that cannot take the sample; "": none.
};
/// References must outlive the request.
StageRequest stage_request(const LayerGraph& model, const Job& job, const DataSource& data);

/// Collective over `group`: rank 0 measures what the layout leaves open (split=auto and branches, recompute=auto), and all ranks get its
/// plan. `model` is whole and not changed. Error on all ranks: kBadInput for a layout that does not fit the model, kInfeasible where no
/// plan fits into the memory limit.
StagePlan plan_stages(LayerGraph& model, const StageRequest& request, Group& group);

/// Error(kBadInput) where the layout's tensor parallelism divides no layer.
void check_division(const ShardPlan& plan, const std::string& model, const Layout& layout);

DivisionRecord division_record(const ShardPlan& plan, const Layout& layout);
/// "tp=2 divides 5 of 8 layers with 97 % of the weights; whole: norm (no rule ...)". Layers without weights are not counted.
std::string describe(const ShardPlan& plan, const Layout& layout);

/// A model spread over ranks: this rank's part of it, and with whom it exchanges.
struct SpreadModel {
  StagePlan plan;
  ShardPlan division;                          ///< Without layers where tp is 1.
  std::map<std::string, std::string> aliases;  ///< Tied weights of the whole model.
  int64_t num_parameters = 0;                  ///< Elements of all parameters of the whole model.
  std::unique_ptr<ModelPart> part;             ///< Not null.

  ParameterPlaces places() const;
};

/// Error(kBadInput) for --sync-batch-norm with a model that has no batch norm.
void check_batch_norm(const Config& config, bool has_some);

/// With the strategy that sums its gradients and updates it.
struct ParallelModel : SpreadModel {
  std::unique_ptr<Strategy> strategy;
};

/// Cuts, recomputes, divides and groups: leaves this rank's part in `model`, which all ranks have built alike. `title` names it in
/// messages. Collective. `model` must outlive the result. Errors as plan_stages().
SpreadModel spread_model(LayerGraph& model, const StageRequest& request, Group& group, const std::string& title);

struct ParallelizeOptions {
  bool checks_pieces = true;      ///< Error for micro-batches that this model's batch norm merges into one.
  bool shares_batch_norm = true;  ///< false: --sync-batch-norm is ignored.
  /// Called with this rank's part before batch norm and the strategy are applied; may be empty.
  std::function<void(LayerGraph&, ModelPart&)> alter_part = {};
};

/// spread_model(), batch norm over ranks, the shares of the batch, and the strategy. Collective; errors as spread_model(), and kBadInput
/// where a rank's share of the batch would be empty.
ParallelModel parallelize(LayerGraph& model, const Job& job, const DataSet& data, Group& group, const ParallelizeOptions& options = {});

/// The micro-batches of a step: fewer than accumulate x microbatches where a norm keeps samples together.
int64_t num_pieces(const Job& job, const LayerGraph& model, const DataSet& data);

}  // namespace cohort
