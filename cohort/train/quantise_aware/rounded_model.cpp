// A layer's module reads its weights from members, so for the time of a forward the members hold the rounded tensors, which autograd knows
// as functions of the exact ones. Nothing else changes: exchange, sharding, optimizer and checkpoints see the exact weights.

#include "cohort/train/quantise_aware/rounded_model.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/quantise_aware/rounding.h"

namespace cohort {
namespace {

/// Members of modules that hold weights. They live as long as their modules, which the layer keeps.
using Places = std::vector<at::Tensor*>;

/// The vector that a recurrent layer computes with; its named members are other handles of the same tensors.
template <typename Module>
struct FlatWeights : Module {
  static std::vector<at::Tensor>& of(Module& module) { return module.*(&FlatWeights::flat_weights_); }
};

template <typename Module>
bool add_recurrent(torch::nn::Module& module, Places& places) {
  auto* const recurrent = dynamic_cast<Module*>(&module);
  if (!recurrent) return false;
  for (at::Tensor& weight : FlatWeights<Module>::of(*recurrent))
    if (weight.defined() && weight.dim() >= 2) places.push_back(&weight);
  return true;
}

template <typename Module>
bool add_weight(torch::nn::Module& module, Places& places) {
  auto* const found = dynamic_cast<Module*>(&module);
  if (found) places.push_back(&found->weight);
  return found != nullptr;
}

/// Layers that int8 kernels know.
bool add_product(torch::nn::Module& module, Places& places) {
  return add_weight<torch::nn::LinearImpl>(module, places) || add_weight<torch::nn::Conv1dImpl>(module, places) ||
         add_weight<torch::nn::Conv2dImpl>(module, places) || add_weight<torch::nn::Conv3dImpl>(module, places);
}

bool is_product(torch::nn::Module& module) {
  Places ignored;
  return add_product(module, ignored);
}

/// Layers whose weights are kept in few bits, and which compute in floats.
bool add_kept(torch::nn::Module& module, Places& places) {
  return add_weight<torch::nn::EmbeddingImpl>(module, places) || add_weight<torch::nn::EmbeddingBagImpl>(module, places) ||
         add_recurrent<torch::nn::LSTMImpl>(module, places) || add_recurrent<torch::nn::GRUImpl>(module, places) ||
         add_recurrent<torch::nn::RNNImpl>(module, places);
}

using Tensors = std::set<const c10::TensorImpl*>;

/// Of modules whose members are not known: what one of them shares is not rounded elsewhere either, or its uses would differ.
Tensors tensors_of_others(const LayerGraph& model) {
  Tensors out;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    Places ignored;
    if (add_product(*module, ignored) || add_kept(*module, ignored)) continue;
    for (const at::Tensor& tensor : module->parameters(/*recurse=*/false)) out.insert(tensor.unsafeGetTensorImpl());
  }
  return out;
}

Places places_of(torch::nn::Module& layer, const Tensors& of_others) {
  Places places;
  for (const auto& module : layer.modules())
    if (!add_product(*module, places)) add_kept(*module, places);
  std::erase_if(places, [&](const at::Tensor* place) { return of_others.contains(place->unsafeGetTensorImpl()); });
  return places;
}

/// Holds rounded tensors in the places as long as it lives.
class RoundedWeights {
 public:
  RoundedWeights(const Places& places, const QuantiseAware& how) : places_(places) {
    for (const at::Tensor* const place : places_) other_.push_back(rounded_weight(*place, how));
    exchange();
  }
  ~RoundedWeights() { exchange(); }
  RoundedWeights(const RoundedWeights&) = delete;
  RoundedWeights& operator=(const RoundedWeights&) = delete;

 private:
  void exchange() noexcept {
    for (size_t i = 0; i < other_.size(); ++i) std::swap(*places_[i], other_[i]);
  }

  const Places& places_;
  std::vector<at::Tensor> other_;  ///< What is not in the places now.
};

LayerGraph::Function rounded(const LayerGraph::Layer& layer, Places places, bool with_input, const QuantiseAware& how) {
  return [exact = layer.function, module = layer.module, places = std::move(places), with_input, how](const LayerGraph::Inputs& inputs) {
    if (!module->is_training()) return exact(inputs);
    const RoundedWeights weights(places, how);
    if (!with_input) return exact(inputs);
    LayerGraph::Inputs of_few_bits;
    for (const at::Tensor& input : inputs) of_few_bits.push_back(input.is_floating_point() ? rounded_samples(input) : input);
    return exact(of_few_bits);
  };
}

}  // namespace

RoundedModel round_while_training(LayerGraph& model, const QuantiseAware& how) {
  RoundedModel out;
  const Tensors of_others = tensors_of_others(model);
  Tensors found;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerGraph::Layer& layer = model.layers()[i];
    if (!layer.module) continue;
    Places places = places_of(*layer.module, of_others);
    if (places.empty()) continue;
    for (const at::Tensor* const place : places) found.insert(place->unsafeGetTensorImpl());
    const bool with_input = how.bits == 8 && is_product(*layer.module);
    if (with_input) out.with_input.push_back(layer.name);
    model.replace_layer(i, layer.module, rounded(layer, std::move(places), with_input, how));
  }
  for (const auto& [name, tensor] : distinct_parameters(model)) {
    if (tensor.dim() < 2 || name.substr(name.rfind('.') + 1).find("weight") == std::string::npos) continue;
    if (found.contains(tensor.unsafeGetTensorImpl())) out.tensors.push_back(name);
    else out.left.push_back(name + " (of a module of another kind)");
  }
  if (out.tensors.empty())
    fail(ErrorCode::kBadInput, name_settings("--quantize-aware: "), model.title(), " has no weight to round",
         out.left.empty() ? "" : concat("; left: ", join(out.left, ", ")));
  return out;
}

std::string describe_rounding(const std::string& how, const RoundedModel& model) {
  std::string text = concat("quantize-aware ", how, ": ", model.tensors.size(), model.tensors.size() == 1 ? " tensor" : " tensors");
  if (!model.with_input.empty())
    text += concat(" and the inputs of ", model.with_input.size(), model.with_input.size() == 1 ? " layer" : " layers");
  text += model.tensors.size() + model.with_input.size() == 1 ? " is" : " are";
  text += " rounded while it trains";
  if (!model.left.empty()) text += "; left: " + join(model.left, ", ");
  return text;
}

}  // namespace cohort
