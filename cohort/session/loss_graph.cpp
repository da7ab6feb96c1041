#include "cohort/session/loss_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

using torch::autograd::Node;

LossGraph::LossGraph(const std::vector<NamedTensor>& weights) { add_weights(weights); }

void LossGraph::add_weights(const std::vector<NamedTensor>& weights) {
  for (const NamedTensor& weight : weights)
    weights_.try_emplace(
        weight.tensor.unsafeGetTensorImpl(),
        Weight{weight.name, c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(weight.tensor.getIntrusivePtr())});
}

void LossGraph::add_output(const at::Tensor& output) {
  std::erase_if(outputs_, [](const auto& one) { return one.expired(); });
  has_output_ = true;
  if (output.grad_fn()) outputs_.emplace_back(output.grad_fn());
}

std::string LossGraph::weight_beside_output(const torch::autograd::edge_list& roots) const {
  std::unordered_set<const Node*> seen;
  for (const auto& output : outputs_)
    if (const auto node = output.lock()) seen.insert(node.get());
  std::vector<Node*> left;
  const auto add = [&](const torch::autograd::edge_list& edges) {
    for (const torch::autograd::Edge& edge : edges)
      if (edge.function && seen.insert(edge.function.get()).second) left.push_back(edge.function.get());
  };
  add(roots);
  while (!left.empty()) {
    Node* const node = left.back();
    left.pop_back();
    if (const auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      if (const auto weight = weights_.find(leaf->variable.unsafeGetTensorImpl()); weight != weights_.end()) return weight->second.name;
    add(node->next_edges());
  }
  return "";
}

std::string LossGraph::weight_beside_output(const at::Tensor& loss) const {
  return loss.requires_grad() ? weight_beside_output({torch::autograd::impl::gradient_edge(loss)}) : "";
}

}  // namespace cohort
