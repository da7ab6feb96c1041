#pragma once
// A LayerGraph or a torch::nn::Sequential of which each rank has a part, for Parallel: cut into stages (pp), with divided tensors (tp),
// with recomputed layers. Private to session/.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/session/parallel.h"
#include "cohort/train/model/checkpoint_pieces.h"
#include "cohort/train/step/parallelize.h"

namespace cohort {

class LayerGraph;

/// Finds weights that a loss depends on besides the model's output. A penalty on weights inside the loss would only see this rank's part:
/// the last stage of a pipeline, or a slice of each tensor. One thread.
class LossGraph {
 public:
  explicit LossGraph(const std::vector<NamedTensor>& weights);

  void add_weights(const std::vector<NamedTensor>& weights);
  /// Adds an output of the model, beyond which the graph is not searched.
  void add_output(const at::Tensor& output);
  /// The first weight that is reached from `roots` and not through an output; else "". Cost: one visit of each node of the loss.
  std::string weight_beside_output(const torch::autograd::edge_list& roots) const;
  std::string weight_beside_output(const at::Tensor& loss) const;
  bool has_output() const { return has_output_; }

 private:
  struct Weight {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;  // Keeps its address from being reused.
  };
  std::map<const void*, Weight> weights_;
  bool has_output_ = false;
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> outputs_;
};

/// The model as named layers: a LayerGraph itself, or a graph of a Sequential's children. Null for other modules.
std::shared_ptr<LayerGraph> layers_of(torch::nn::Module& module);

/// One thread.
class SplitModel {
 public:
  /// Collective. Removes other ranks' layers and slices from `module`, whose forward() still returns the whole output under tp. `example`:
  /// an input to measure the layers on; needed for pp. Error(kBadInput) for a model that the layout does not fit.
  SplitModel(torch::nn::Module& module, const Group& group, const Layout& layout, const UpdateRule& rule, const at::Tensor& example);

  LayerGraph& part() { return *graph_; }
  /// Ranks with the same part.
  const Group& data() const { return place().data(); }
  ModelPart& place() const { return *spread_.part; }
  bool is_pipeline() const { return place().pipeline() != nullptr; }
  /// This rank's share of a batch, and the number of shares.
  int share_index() const { return place().pipeline_index(); }
  int num_shares() const { return place().num_pipelines(); }
  ParameterPlaces places() const { return spread_.places(); }
  const std::map<std::string, std::string>& aliases() const { return spread_.aliases; }
  /// "tp=2 divides 4 of 5 layers with 99 % of the weights; stage 0 on worker 0: conv1 conv2; ...": for people.
  const std::string& description() const { return description_; }

  /// For a pipeline: Error(kBadInput) on all ranks that share one copy of the model if they were given different rows (64 elements are
  /// compared). Without stages forward() and backward() compare. Collective.
  void check_rows(const at::Tensor& input, const at::Tensor& target);
  /// Error(kFailed) on all tensor-parallel ranks if weights that each of them has whole differ (a few elements are compared in a step),
  /// because they were given different rows or drew different random numbers. Collective.
  void check_whole_weights();

  /// Called before a backward() from `roots`. Error(kBadInput) for a penalty on weights inside the loss.
  void check_loss(const torch::autograd::edge_list& roots);
  /// Called after backward().
  void check_loss_again();

  /// Runs this rank's rows through the pipeline in `microbatches` pieces; gradients add up. `loss` is the mean over its rows, and is
  /// multiplied by `weight`. Collective. Returns the loss over the whole batch on all ranks.
  struct Pass {
    at::Tensor input, target;
    LossFunction loss;
    double weight = 1;
    StepContext context;
  };
  double run_pipeline(const Pass& pass);
  /// The part of its rows that this rank has run itself in the last run_pipeline(), for averages of buffers.
  double own_share() const { return own_share_; }
  /// The model's whole output for this rank's rows; without gradients under pp. Collective.
  at::Tensor forward(const at::Tensor& input);

 private:
  void check(torch::nn::Module& module, const at::Tensor& example) const;
  void make_replica();
  void watch_ends();
  void show_parts(torch::nn::Module& module);
  void describe(const StageAssignment& stages);
  void describe_batch_norm();
  void refuse_weight_in_loss(const std::string& weight) const;

  Group group_;
  Layout layout_;
  std::shared_ptr<LayerGraph> graph_;
  SpreadModel spread_;
  Group replica_;                               ///< Ranks that share this rank's copy of the model.
  std::unique_ptr<WeightCheck> whole_weights_;  ///< For tensor-parallel ranks.
  std::shared_ptr<LossGraph> loss_graph_;       ///< If ranks have parts of the model.
  std::string description_, too_early_;
  double own_share_ = 1;
};

}  // namespace cohort
