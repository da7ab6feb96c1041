// Fake quantisation with straight-through gradients (Jacob et al. 2018, "Quantization and training of neural networks for efficient
// integer-arithmetic-only inference", section 3; Bengio et al. 2013 for the gradient).
//
//   weights  scale = max |w| of the row (or group) / L, w' = scale * round(w / scale)   L = 127 of 8 bits, 7 of 4 bits
//   samples  scale = (max(x, 0) - min(x, 0)) / 127, zero point z = round(-min(x, 0) / scale), x' = scale * (clamp(round(x / scale) + z,
//            0, 127) - z): 7 bits, as int8 kernels here have them (docs/guide/compress.md)
//   gradient of x = gradient of x', except for numbers beyond the clamp
//
// LibTorch's fake_quantize_per_channel_affine does the rounding and its backward in one pass each. Cost: two more passes over each weight
// and input in forward, one in backward, and a byte a number that is kept until then.
//
// A layer's module reads its weights from members, so during a forward the members hold the rounded tensors, which are functions of the
// exact ones for autograd. Exchange, sharding, optimizer and checkpoints see the exact weights.
//
// Difference: Jacob et al. keep a moving range of each activation over all samples. That state would depend on the samples that a rank has
// seen, and so on the layout. Here each sample has its own range. The exported file has ranges from calibration, as any static
// quantisation; they are a little coarser.
#include "cohort/train/model/rounded_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

constexpr int64_t kSampleCodes = 127;

/// Keeps scales that are not finite, so that the results are not finite either.
at::Tensor without_zeros(const at::Tensor& scales) { return at::where(scales == 0, at::ones_like(scales), scales); }

/// {rows, columns}, each row with its scale.
at::Tensor rounded_rows(const at::Tensor& rows, int64_t largest) {
  at::Tensor scales, zeros;
  {
    at::NoGradGuard no_grad;
    scales = without_zeros(rows.abs().amax(1) / static_cast<double>(largest));
    zeros = at::zeros(scales.sizes(), scales.options().dtype(at::kInt));
  }
  return at::fake_quantize_per_channel_affine(rows, scales, zeros, /*axis=*/0, -largest, largest);
}

/// Members of modules that hold weights; the layer keeps the modules alive.
using Places = std::vector<at::Tensor*>;

/// A recurrent layer computes with this vector, not with its named members.
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

/// Layers with int8 kernels.
bool add_product(torch::nn::Module& module, Places& places) {
  return add_weight<torch::nn::LinearImpl>(module, places) || add_weight<torch::nn::Conv1dImpl>(module, places) ||
         add_weight<torch::nn::Conv2dImpl>(module, places) || add_weight<torch::nn::Conv3dImpl>(module, places);
}

bool is_product(torch::nn::Module& module) {
  Places ignored;
  return add_product(module, ignored);
}

/// Layers that store their weights in few bits and compute in floats.
bool add_kept(torch::nn::Module& module, Places& places) {
  return add_weight<torch::nn::EmbeddingImpl>(module, places) || add_weight<torch::nn::EmbeddingBagImpl>(module, places) ||
         add_recurrent<torch::nn::LSTMImpl>(module, places) || add_recurrent<torch::nn::GRUImpl>(module, places) ||
         add_recurrent<torch::nn::RNNImpl>(module, places);
}

using Tensors = std::set<const c10::TensorImpl*>;

/// Weights of other modules. A weight shared with one of them is not rounded anywhere, so that all its uses are the same.
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

/// Replaces the weights by rounded ones while it lives.
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
  std::vector<at::Tensor> other_;  // The tensors that are not in the places now.
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

at::Tensor rounded_weight(const at::Tensor& weight, const QuantiseAware& how) {
  if (weight.numel() == 0) return weight;
  const int64_t largest = how.bits == 8 ? 127 : 7, rows = weight.size(0), columns = weight.numel() / rows;
  const at::Tensor flat = weight.reshape({rows, columns});
  if (how.group == 0 || how.group >= columns) return rounded_rows(flat, largest).view(weight.sizes());
  const int64_t num_groups = (columns + how.group - 1) / how.group, padding = num_groups * how.group - columns;
  const at::Tensor padded = padding == 0 ? flat : at::constant_pad_nd(flat, {0, padding});
  const at::Tensor rounded = rounded_rows(padded.view({rows * num_groups, how.group}), largest).view({rows, num_groups * how.group});
  return (padding == 0 ? rounded : rounded.narrow(1, 0, columns).contiguous()).view(weight.sizes());
}

at::Tensor rounded_samples(const at::Tensor& samples) {
  if (samples.dim() < 2 || samples.numel() == 0) return samples;
  at::Tensor scales, zeros;
  {
    at::NoGradGuard no_grad;
    const at::Tensor rows = samples.reshape({samples.size(0), -1});
    const at::Tensor lowest = rows.amin(1).clamp_max(0), highest = rows.amax(1).clamp_min(0);
    scales = without_zeros((highest - lowest) / static_cast<double>(kSampleCodes));
    // Zero points must exist also for numbers that are not finite, which the training itself reports.
    zeros = (-lowest / scales).nan_to_num(0, 0, 0).round().clamp(0, kSampleCodes).to(at::kInt);
  }
  return at::fake_quantize_per_channel_affine(samples, scales, zeros, /*axis=*/0, 0, kSampleCodes);
}

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
