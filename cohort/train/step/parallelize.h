#pragma once
// What a layout makes of a model on one rank: which layers are divided, which are not and why; and, parallelize.cpp is the recipe one step
// after the other, the model spread over ranks with what sums its gradients.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/job/layout.h"
#include "cohort/job/specs/fault.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/record/start_records.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/train/model/checkpoint_pieces.h"
#include "cohort/train/step/plan_stages.h"

namespace cohort {

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
  Fault fault = Fault::kNone;  ///< Put in on purpose, on the ranks that it is about.
  bool checks_pieces = true;   ///< Error for pieces of a step that this model's batch norm makes one again.
};

/// All of it for a training: spread_model(), batch norm over ranks, the shares of the batch, the strategy. Collective; errors as those of
/// spread_model(), and kBadInput where a rank's share of the batch would be empty.
ParallelModel parallelize(LayerGraph& model, const Job& job, const DataSet& data, Group& group, const ParallelizeOptions& options = {});

/// How many pieces a step has: where a norm keeps samples together it may be fewer than accumulate x microbatches.
int64_t num_pieces(const Job& job, const LayerGraph& model, const DataSet& data);

}  // namespace cohort
