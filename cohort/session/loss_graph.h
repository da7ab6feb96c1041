#pragma once
// What a loss hangs on besides the model's output. Private to session/.

#include <torch/csrc/autograd/edge.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/parallel/parameters.h"

namespace cohort {

/// Where each rank has a part of the model, a penalty on the weights inside the loss would count that part: with pipelines the last
/// stage's weights alone, with divided tensors a slice of each. One thread.
class LossGraph {
 public:
  explicit LossGraph(const std::vector<NamedTensor>& weights);

  /// Forward has made one: what is behind it is the model.
  void add_output(const at::Tensor& output);
  /// The first weight that is reached from `roots` and not through an output; else "". Cost: a visit of each node of the loss.
  std::string weight_beside_output(const torch::autograd::edge_list& roots) const;
  std::string weight_beside_output(const at::Tensor& loss) const;

 private:
  std::map<const void*, std::string> weights_;
  bool has_run_ = false;  ///< Before the first forward a loss is of a graph from before Parallel, which is told otherwise.
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> outputs_;
};

}  // namespace cohort
