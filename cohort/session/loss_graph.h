#pragma once
// What a loss hangs on besides the model's output. Private to session/.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <map>
#include <string>
#include <vector>

namespace cohort {

struct NamedTensor;

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

}  // namespace cohort
