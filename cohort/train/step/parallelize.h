#pragma once
// What a layout makes of a model on one rank. parallelize.cpp is the recipe, one step after the other.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/faults.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/tensor/shard_graph.h"
#include "cohort/train/model/parameter_places.h"
#include "cohort/train/step/plan_stages.h"

namespace cohort {

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
