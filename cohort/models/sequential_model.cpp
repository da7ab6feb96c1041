// What a factory may return, as a LayerGraph. Of a torch::nn::Sequential child i becomes a layer under the child's own name, which reads
// the layer before it; what another module does inside of its forward() cannot be seen, so it is one layer.

#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/registry.h"

namespace cohort {
namespace {

/// "torch::nn::Conv2dImpl" -> "conv2d". A class of the program's own keeps its name spaces, "mine::linear" or "::linear": it may do
/// anything, so no rule for LibTorch's layer of that name is one for it.
std::string kind_of(const torch::nn::Module& module) {
  std::string kind = module.name();
  kind.resize(std::min(kind.size(), kind.find('<')));  // Of a template: not what its arguments are called.
  if (kind.ends_with("Impl")) kind.resize(kind.size() - 4);
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string known : {"torch::nn::", "cohort::"})
    if (kind.starts_with(known) && kind.find("::", known.size()) == std::string::npos) return kind.substr(known.size());
  const std::string unnamed = "(anonymous namespace)::";
  for (size_t at = kind.find(unnamed); at != std::string::npos; at = kind.find(unnamed)) kind.erase(at, unnamed.size());
  return kind.find("::") == std::string::npos ? "::" + kind : kind;
}

}  // namespace

BuiltModel::BuiltModel(std::shared_ptr<LayerGraph> built, BuiltModelOptions options) : graph(std::move(built)) {
  if (graph && options.loss) graph->set_loss(std::move(options.loss));
}

std::shared_ptr<LayerGraph> BuiltModel::one_layer(std::shared_ptr<torch::nn::Module> module, LayerGraph::Function function,
                                                  BuiltModelOptions options) {
  if (!module) fail(ErrorCode::kBadInput, "a model cannot be an empty module: make the one that the factory returns");
  auto graph = std::make_shared<LayerGraph>();
  const std::string kind = kind_of(*module);
  graph->add_layer("model", kind, std::move(module), std::move(function), {});
  graph->set_loss(std::move(options.loss));
  return graph;
}

BuiltModel::BuiltModel(torch::nn::Sequential sequential, BuiltModelOptions options) : graph(std::make_shared<LayerGraph>()) {
  graph->set_loss(std::move(options.loss));
  if (sequential.is_empty() || sequential->is_empty()) fail(ErrorCode::kBadInput, "a model cannot be an empty torch::nn::Sequential");
  const auto children = sequential->named_children();
  size_t index = 0;
  for (const torch::nn::AnyModule& child : *sequential) {
    const auto& name = children[index++].key();
    // A copy of an AnyModule is another handle of the same module; calling it is not const.
    graph->add_layer(name, kind_of(*child.ptr()), child.ptr(),
                     [any = child](const LayerGraph::Inputs& in) mutable { return any.forward(in[0]); }, {});
  }
}

}  // namespace cohort
