#include "cohort/compress/layer_facts.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <exception>

#include "cohort/base/fail.h"
#include "cohort/compress/activations.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"

namespace cohort {
namespace {

using Does = LayerFacts::Does;

bool is_same(const at::Tensor& found, const at::Tensor& wanted) {
  return found.defined() && wanted.defined() && found.scalar_type() == wanted.scalar_type() && found.sizes() == wanted.sizes() &&
         at::allclose(found, wanted, /*rtol=*/1e-4, /*atol=*/1e-5 * std::max(1.0, wanted.abs().max().item<double>()));
}

bool is_floats(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.numel() > 0; }

/// Whether codes in give codes out of the same scale, as near to the floats as codes can be. Means over many values are left to floats:
/// they are finer than a code.
bool goes_through(const LayerGraph& model, size_t index, const at::Tensor& input, const at::Tensor& output) {
  constexpr int64_t kMostValuesInOne = 16;
  if (!is_floats(input) || !is_floats(output) || output.numel() * kMostValuesInOne < input.numel()) return false;
  try {
    const CodeScale scale = scale_of_range({input.min().item<double>(), input.max().item<double>()});
    const at::Tensor codes = to_int8(input, scale);
    const at::Tensor found = model.run_layer(index, {codes}), wanted = model.run_layer(index, {codes.dequantize()});
    return found.is_quantized() && found.q_scale() == codes.q_scale() && found.q_zero_point() == codes.q_zero_point() &&
           found.sizes() == wanted.sizes() && (found.dequantize() - wanted).abs().max().item<double>() <= 0.51 * scale.scale;
  } catch (const std::exception&) {
    return false;  // It has no kernel for codes, which is an answer.
  }
}

at::Tensor normalised_by(const NormFactors& factors, const at::Tensor& input) {
  return input * factors.factor.view({1, -1, 1, 1}) + factors.shift.view({1, -1, 1, 1});
}

bool has_matrix(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.dim() >= 2 && parameter.scalar_type() == at::kFloat; });
}

Does what_module_does(torch::nn::Module* module, const at::Tensor& input, const at::Tensor& output) {
  if (auto* conv = dynamic_cast<torch::nn::Conv2dImpl*>(module))
    return input.dim() == 4 && has_int8_kernel(*conv) && is_same(output, conv->forward(input)) ? Does::kConvolution : Does::kOther;
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(module))
    return input.dim() >= 2 && is_same(output, linear->forward(input)) ? Does::kProduct : Does::kOther;
  if (auto* block = dynamic_cast<TransformerBlockImpl*>(module))
    return is_same(output, block->forward(input)) ? Does::kBlock : Does::kOther;
  if (const auto factors = norm_factors(module); factors && input.dim() == 4 && input.size(1) == factors->factor.size(0))
    return is_same(output, normalised_by(*factors, input)) ? Does::kNorm : Does::kOther;
  return Does::kOther;
}

Does what_it_does(const LayerGraph& model, size_t index, const LayerGraph::Inputs& inputs, const at::Tensor& output) {
  const LayerGraph::Layer& layer = model.layers()[index];
  if (!std::all_of(inputs.begin(), inputs.end(), is_floats) || !is_floats(output)) return Does::kOther;
  const bool is_dropout = dynamic_cast<const DropoutImpl*>(layer.module.get()) != nullptr;  // In eval mode it hands on what it gets.
  if (layer.module && !is_dropout) return inputs.size() == 1 ? what_module_does(layer.module.get(), inputs[0], output) : Does::kOther;
  if (inputs.size() == 2 && inputs[0].sizes() == inputs[1].sizes() && is_same(output, inputs[0] + inputs[1])) return Does::kSum;
  if (inputs.size() != 1) return Does::kOther;
  const bool cuts = inputs[0].min().item<double>() < 0;  // Else anything that changes nothing would be a ReLU.
  if (cuts && is_same(output, at::relu(inputs[0]))) return Does::kRelu;
  return goes_through(model, index, inputs[0], output) ? Does::kThrough : Does::kOther;
}

std::string why_float(const LayerGraph::Layer& layer, const LayerFacts& facts) {
  if (!facts.has_weights || facts.does == Does::kConvolution || facts.does == Does::kProduct || facts.does == Does::kBlock) return "";
  return concat("no int8 kernel for a layer of kind ", layer.kind);
}

}  // namespace

std::optional<NormFactors> norm_factors(const torch::nn::Module* module) {
  constexpr double kGhostEpsilon = 1e-5;  // What the families have; another one is found out by the comparison of outputs.
  const auto of = [](const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& variance, double epsilon) {
    const at::Tensor gamma = weight.defined() ? weight : at::ones_like(mean), beta = bias.defined() ? bias : at::zeros_like(mean);
    const at::Tensor factor = gamma.detach() * at::rsqrt(variance + epsilon);
    return NormFactors{factor, beta.detach() - mean * factor};
  };
  if (const auto* norm = dynamic_cast<const GhostBatchNorm2dImpl*>(module))
    return of(norm->weight, norm->bias, norm->running_mean, norm->running_var, kGhostEpsilon);
  const auto* norm = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(module);
  if (!norm || !norm->running_mean.defined()) return {};
  return of(norm->weight, norm->bias, norm->running_mean, norm->running_var, norm->options.eps());
}

std::vector<LayerFacts> examine_layers(const LayerGraph& model, const at::Tensor& input) {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> outputs = run_layers(model, input);
  std::vector<LayerFacts> facts(outputs.size());
  for (size_t i = 0; i < facts.size(); ++i) {
    const LayerGraph::Layer& layer = model.layers()[i];
    for (const int source : layer.inputs)
      if (source >= 0) facts[static_cast<size_t>(source)].readers.push_back(i);
    facts[i].has_weights = layer.module && has_matrix(*layer.module);
    facts[i].does = what_it_does(model, i, inputs_of(model, i, input, outputs), outputs[i]);
    facts[i].why_float = why_float(layer, facts[i]);
  }
  // What nobody else reads may be absorbed.
  const auto only_reader = [&](size_t layer, Does does) -> std::optional<size_t> {
    const std::vector<size_t>& readers = facts[layer].readers;
    return readers.size() == 1 && facts[readers[0]].does == does ? std::optional(readers[0]) : std::nullopt;
  };
  for (size_t i = 0; i < facts.size(); ++i) {
    if (facts[i].does == Does::kConvolution) facts[i].norm = only_reader(i, Does::kNorm);
    if (facts[i].does == Does::kConvolution || facts[i].does == Does::kProduct || facts[i].does == Does::kSum)
      facts[i].relu = only_reader(facts[i].norm.value_or(i), Does::kRelu);
  }
  return facts;
}

}  // namespace cohort
