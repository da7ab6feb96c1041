// Calibration of activations, and examination of layers.
//
// Calibration methods choose the range that codes span; a small range has fine steps and cuts values off:
//
//   min-max      all values seen. Nothing is cut off; one outlier makes all steps coarse.
//   percentile   all values but the fraction 0.00005 at each end (McKinstry et al. 2018, "Discovering low-precision networks close to
//                full-precision networks", section 3.1).
//   mse          the range with the least mean squared error of the codes (Banner et al. 2019, "Post training 4-bit quantization of
//                convolutional networks for rapid-deployment", section 2, by search instead of a formula for one distribution):
//                  E(f) = sum over bins of count * (value - nearest code of [f low, f high])^2,  f = 0.01, 0.02, ... 1
//                Within a bin the rounding error is that of a uniform distribution, step^2 / 12; a value outside loses its distance to the
//                end. Of equal errors the larger range wins.
//
// Cost: two forwards of each calibration batch, then none, one and 100 passes over the bins of each tensor.
//
// Examination: each layer's output on one batch is compared with that of the operation that its module suggests, then layers whose output
// nobody else reads are marked as absorbable. Cost: two forwards.
#include "cohort/compress/layer_facts.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"

namespace cohort {

Histogram::Histogram(ValueRange range) : range_{std::min(range.low, 0.0), std::max(range.high, 0.0)} {
  if (!(range_.high > range_.low)) range_.high = range_.low + 1;  // All values are zero.
}

void Histogram::add(std::span<const float> values) {
  const double bins_a_unit = 1 / width();
  for (const float value : values) {
    if (std::isnan(value)) continue;
    const double bin = (static_cast<double>(value) - range_.low) * bins_a_unit;
    counts_[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(kNumBins - 1)))] += 1;
    total_ += 1;
  }
}

namespace {

constexpr double kFractionCutOff = 0.00005;
constexpr int kNumFractions = 100;

ValueRange full_range(const Histogram& values) { return values.range(); }

ValueRange percentile_range(const Histogram& values) {
  const double allowed = kFractionCutOff * values.total();
  const std::vector<double>& counts = values.counts();
  size_t low = 0, high = Histogram::kNumBins;
  for (double cut_off = counts[low]; cut_off <= allowed && low + 1 < high; cut_off += counts[low]) ++low;
  for (double cut_off = counts[high - 1]; cut_off <= allowed && high - 1 > low; cut_off += counts[high - 1]) --high;
  const auto edge = [&](size_t bin) { return values.range().low + static_cast<double>(bin) * values.width(); };
  // Zero stays inside: padding and ReLU need its code.
  return {std::min(edge(low), 0.0), std::max(edge(high), 0.0)};
}

double squared_error(const Histogram& values, const ValueRange& range) {
  const double step = (range.high - range.low) / kActivationSteps, rounding = step * step / 12;
  double sum = 0;
  for (size_t bin = 0; bin < Histogram::kNumBins; ++bin) {
    const double value = values.center(bin), cut_off = value - std::clamp(value, range.low, range.high);
    sum += values.counts()[bin] * (cut_off * cut_off + rounding);
  }
  return sum;
}

ValueRange least_squared_error_range(const Histogram& values) {
  ValueRange best = values.range();
  double least = squared_error(values, best);
  for (int i = kNumFractions - 1; i > 0; --i) {
    const double fraction = static_cast<double>(i) / kNumFractions;
    const ValueRange range{fraction * values.range().low, fraction * values.range().high};
    const double error = squared_error(values, range);
    if (error < least) {
      least = error;
      best = range;
    }
  }
  return best;
}

}  // namespace

const std::vector<RangeMethod>& range_methods() {
  static const std::vector<RangeMethod> methods = {
      {"min-max", full_range}, {"percentile", percentile_range}, {"mse", least_squared_error_range}};
  return methods;
}

const RangeMethod& find_range_method(const std::string& name) {
  std::vector<std::string> names;
  for (const RangeMethod& method : range_methods()) {
    if (method.name == name) return method;
    names.push_back(method.name);
  }
  fail(ErrorCode::kBadInput, "--calibration ", name, did_you_mean(name, names), ": expected one of ", join(names, " "));
}

namespace {

/// Codes 0 to kActivationSteps over `range`; zero has a code of its own.
CodeScale scale_of_range(const ValueRange& range) {
  const double low = std::min(range.low, 0.0), high = std::max(range.high, 0.0);
  const double scale = high > low ? (high - low) / kActivationSteps : 1;
  return {scale, std::clamp<int64_t>(std::lround(-low / scale), 0, kActivationSteps)};
}

LayerGraph::Inputs inputs_of(const LayerGraph& model, size_t index, const at::Tensor& input, const std::vector<at::Tensor>& outputs) {
  LayerGraph::Inputs inputs;
  for (const int source : model.layers()[index].inputs)
    inputs.push_back(source == LayerGraph::kInput ? input : outputs.at(static_cast<size_t>(source)));
  return inputs;
}

/// One tensor of the model: first its extremes are collected, then its histogram.
struct ObservedTensor {
  ValueRange range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  Histogram histogram;
  bool is_usable = true;

  void widen(const at::Tensor& tensor) {
    is_usable = is_usable && tensor.scalar_type() == at::kFloat;
    if (!is_usable || tensor.numel() == 0) return;
    const auto [least, largest] = at::aminmax(tensor);
    range.low = std::min(range.low, least.item<double>());
    range.high = std::max(range.high, largest.item<double>());
    is_usable = std::isfinite(range.low) && std::isfinite(range.high);  // aminmax() returns NaN where there is one.
  }
  void count(const at::Tensor& tensor) {
    if (!is_usable || tensor.numel() == 0) return;
    if (histogram.is_empty()) histogram = Histogram(range);
    const at::Tensor values = tensor.contiguous();
    histogram.add({values.data_ptr<float>(), static_cast<size_t>(values.numel())});
  }
  std::optional<CodeScale> scale(const RangeMethod& method) const {
    if (!is_usable || histogram.is_empty()) return {};
    const CodeScale scale = scale_of_range(method.choose(histogram));
    return scale.scale > 1e-30 && scale.scale < 1e30 ? std::optional(scale) : std::nullopt;
  }
};

}  // namespace

std::vector<at::Tensor> run_layers(const LayerGraph& model, const at::Tensor& input) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < model.layers().size(); ++i) outputs.push_back(model.run_layer(i, inputs_of(model, i, input, outputs)));
  return outputs;
}

ActivationScales observe_activations(const LayerGraph& model, const std::vector<at::Tensor>& batches, const RangeMethod& method) {
  at::NoGradGuard no_grad;
  ObservedTensor of_input;
  std::vector<ObservedTensor> of_outputs(model.layers().size());
  for (const auto take : {&ObservedTensor::widen, &ObservedTensor::count})
    for (const at::Tensor& batch : batches) {
      (of_input.*take)(batch);
      const std::vector<at::Tensor> outputs = run_layers(model, batch);
      for (size_t i = 0; i < outputs.size(); ++i) (of_outputs[i].*take)(outputs[i]);
    }
  ActivationScales scales{.input = of_input.scale(method), .outputs = {}};
  for (const ObservedTensor& output : of_outputs) scales.outputs.push_back(output.scale(method));
  return scales;
}

namespace {

using Does = LayerFacts::Does;

bool is_same(const at::Tensor& found, const at::Tensor& wanted) {
  return found.defined() && wanted.defined() && found.scalar_type() == wanted.scalar_type() && found.sizes() == wanted.sizes() &&
         at::allclose(found, wanted, /*rtol=*/1e-4, /*atol=*/1e-5 * std::max(1.0, wanted.abs().max().item<double>()));
}

bool is_floats(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.numel() > 0; }

/// Whether the layer maps codes to codes of the same scale with no more error than rounding. Means over many values are finer than a code,
/// so they stay in floats.
bool goes_through(const LayerGraph& model, size_t index, const at::Tensor& input, const at::Tensor& output) {
  constexpr int64_t kMaxValuesInOne = 16;
  if (!is_floats(input) || !is_floats(output) || output.numel() * kMaxValuesInOne < input.numel()) return false;
  try {
    const CodeScale scale = scale_of_range({input.min().item<double>(), input.max().item<double>()});
    const at::Tensor codes = to_int8(input, scale);
    const at::Tensor found = model.run_layer(index, {codes}), wanted = model.run_layer(index, {codes.dequantize()});
    return found.is_quantized() && found.q_scale() == codes.q_scale() && found.q_zero_point() == codes.q_zero_point() &&
           found.sizes() == wanted.sizes() && (found.dequantize() - wanted).abs().max().item<double>() <= 0.51 * scale.scale;
  } catch (const std::exception&) {
    return false;  // LibTorch has no kernel for codes here.
  }
}

at::Tensor apply_norm(const NormFactors& factors, const at::Tensor& input) {
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
    return is_same(output, apply_norm(*factors, input)) ? Does::kNorm : Does::kOther;
  return Does::kOther;
}

Does what_it_does(const LayerGraph& model, size_t index, const LayerGraph::Inputs& inputs, const at::Tensor& output) {
  const LayerGraph::Layer& layer = model.layers()[index];
  if (!std::all_of(inputs.begin(), inputs.end(), is_floats) || !is_floats(output)) return Does::kOther;
  const bool is_dropout = dynamic_cast<const DropoutImpl*>(layer.module.get()) != nullptr;  // The identity in eval mode.
  if (layer.module && !is_dropout) return inputs.size() == 1 ? what_module_does(layer.module.get(), inputs[0], output) : Does::kOther;
  if (inputs.size() == 2 && inputs[0].sizes() == inputs[1].sizes() && is_same(output, inputs[0] + inputs[1])) return Does::kSum;
  if (inputs.size() != 1) return Does::kOther;
  const bool has_negatives = inputs[0].min().item<double>() < 0;  // Without them the identity would look like a ReLU.
  if (has_negatives && is_same(output, at::relu(inputs[0]))) return Does::kRelu;
  return goes_through(model, index, inputs[0], output) ? Does::kThrough : Does::kOther;
}

}  // namespace

std::optional<NormFactors> norm_factors(const torch::nn::Module* module) {
  constexpr double kGhostEpsilon = 1e-5;  // That of the built-in models; the comparison of outputs detects another one.
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
    if (facts[i].has_weights && facts[i].does != Does::kConvolution && facts[i].does != Does::kProduct && facts[i].does != Does::kBlock)
      facts[i].why_float = concat("no int8 kernel for a layer of kind ", layer.kind);
  }
  // Only a layer that nobody else reads may be absorbed.
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
