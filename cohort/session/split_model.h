#pragma once
// A LayerGraph or a torch::nn::Sequential of which each rank has a part, behind Parallel: cut into stages (pp), its tensors divided (tp),
// its layers run again in backward (recompute).

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

// What a loss hangs on besides the model's output. Private to session/.

/// Where each rank has a part of the model, a penalty on the weights inside the loss would count that part: with pipelines the last
/// stage's weights alone, with divided tensors a slice of each. One thread.
class LossGraph {
 public:
  explicit LossGraph(const std::vector<NamedTensor>& weights);

  void add_weights(const std::vector<NamedTensor>& weights);
  /// Forward has made one: what is behind it is the model.
  void add_output(const at::Tensor& output);
  /// The first weight that is reached from `roots` and not through an output; else "". Cost: a visit of each node of the loss.
  std::string weight_beside_output(const torch::autograd::edge_list& roots) const;
  std::string weight_beside_output(const at::Tensor& loss) const;
  bool has_output() const { return has_output_; }

 private:
  struct Weight {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;  ///< So that no other one gets its address.
  };
  std::map<const void*, Weight> weights_;
  bool has_output_ = false;
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> outputs_;
};

/// The model as named layers: itself, or a graph of a Sequential's children. Null for any other module.
std::shared_ptr<LayerGraph> layers_of(torch::nn::Module& module);

/// One thread.
class SplitModel {
 public:
  /// Collective. What other ranks have is taken out of `module`, whose forward() goes on to give the whole output under tp. `example`: an
  /// input to measure the layers on; needed with pp. Error(kBadInput) for a model that the layout does not fit.
  SplitModel(torch::nn::Module& module, const Group& group, const Layout& layout, const UpdateRule& rule, const at::Tensor& example);

  LayerGraph& part() { return *graph_; }
  /// Ranks with the same part.
  const Group& data() const { return place().data(); }
  ModelPart& place() const { return *spread_.part; }
  bool is_pipeline() const { return place().pipeline() != nullptr; }
  /// Which part of a batch is this rank's, of how many.
  int share_index() const { return place().pipeline_index(); }
  int num_shares() const { return place().num_pipelines(); }
  ParameterPlaces places() const { return spread_.places(); }
  const std::map<std::string, std::string>& aliases() const { return spread_.aliases; }
  /// "tp=2 divides 4 of 5 layers with 99 % of the weights; stage 0 on worker 0: conv1 conv2; ...": for people.
  const std::string& description() const { return description_; }

  /// Of a pipeline: ranks that share one copy of the model must be given the same rows, Error(kBadInput) on all of them where they are not
  /// (some 64 elements are looked at). Where only tensors are divided forward() and backward() look. Collective.
  void check_rows(const at::Tensor& input, const at::Tensor& target);
  /// Error(kFailed) on all ranks of a division where weights that are whole on each of them have come apart (a few elements a step): they
  /// were given other rows, or drew other random numbers. Collective.
  void check_whole_weights();

  /// Where tensors are divided, before a backward() from `roots`: Error(kBadInput) for a penalty on weights inside the loss.
  void check_loss(const torch::autograd::edge_list& roots);
  /// After it.
  void check_loss_again();

  /// Forward and backward of this rank's rows through the pipeline, `microbatches` pieces of them; gradients add up. `loss` is the mean
  /// over the rows that it gets, and counts `weight` times. Collective. Returns the loss over the whole batch on all ranks.
  struct Pass {
    at::Tensor input, target;
    LossFunction loss;
    double weight = 1;
    StepContext context;
  };
  double run_pipeline(const Pass& pass);
  /// The share of this rank's samples that it has run itself in the last run_pipeline(): for averages of buffers.
  double own_share() const { return own_share_; }
  /// The model's whole output for this rank's rows, without gradients under pp; on all ranks. Collective.
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
  std::unique_ptr<WeightCheck> whole_weights_;  ///< Of ranks that divide tensors.
  std::shared_ptr<LossGraph> loss_graph_;       ///< Where ranks have parts.
  std::string description_, too_early_;
  double own_share_ = 1;
};

}  // namespace cohort
