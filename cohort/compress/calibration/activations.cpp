#include "cohort/compress/calibration/activations.h"

#include <ATen/ops/aminmax.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace cohort {
namespace {

/// Of one tensor of the model: first its ends, then its histogram.
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
    is_usable = std::isfinite(range.low) && std::isfinite(range.high);  // A NaN is the least and the largest.
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

LayerGraph::Inputs inputs_of(const LayerGraph& model, size_t index, const at::Tensor& input, const std::vector<at::Tensor>& outputs) {
  LayerGraph::Inputs inputs;
  for (const int source : model.layers()[index].inputs)
    inputs.push_back(source == LayerGraph::kInput ? input : outputs.at(static_cast<size_t>(source)));
  return inputs;
}

std::vector<at::Tensor> run_layers(const LayerGraph& model, const at::Tensor& input) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < model.layers().size(); ++i) outputs.push_back(model.run_layer(i, inputs_of(model, i, input, outputs)));
  return outputs;
}

CodeScale scale_of_range(const ValueRange& range) {
  const double low = std::min(range.low, 0.0), high = std::max(range.high, 0.0);
  const double scale = high > low ? (high - low) / kActivationSteps : 1;
  return {scale, std::clamp<int64_t>(std::lround(-low / scale), 0, kActivationSteps)};
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

}  // namespace cohort
