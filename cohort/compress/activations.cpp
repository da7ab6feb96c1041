#include "cohort/compress/activations.h"

#include <ATen/ops/aminmax.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

Histogram::Histogram(ValueRange range) : range_{std::min(range.low, 0.0), std::max(range.high, 0.0)} {
  if (!(range_.high > range_.low)) range_.high = range_.low + 1;  // Zeros alone.
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

// The methods:
//
// min-max      all values that were seen. Nothing is cut off; one outlier makes all steps coarse.
// percentile   all values but the few at each end (McKinstry et al. 2018, "Discovering low-precision networks close to full-precision
//              networks", section 3.1): a share of 0.00005 is left out below and above. Walks the bins from each end until the share is
//              reached.
// mse          the range with the least mean squared error of the codes (Banner et al. 2019, "Post training 4-bit quantization of
//              convolutional networks for rapid-deployment", section 2, by search in place of a formula for one distribution):
//                E(f) = sum over bins of count * (value - nearest code of [f low, f high])^2,  f = 0.01, 0.02, ... 1
//              Within a bin the error of rounding is that of an even spread, step^2 / 12; a value outside loses its distance to the end.
//              Of equal errors the larger range.
//
// Cost: none, one and 100 passes over the bins.

namespace {

constexpr double kShareLeftOut = 0.00005;
constexpr int kNumFractions = 100;

ValueRange inner_range(const Histogram& values) {
  const double allowed = kShareLeftOut * values.total();
  const std::vector<double>& counts = values.counts();
  size_t low = 0, high = Histogram::kNumBins;
  for (double left_out = counts[low]; left_out <= allowed && low + 1 < high; left_out += counts[low]) ++low;
  for (double left_out = counts[high - 1]; left_out <= allowed && high - 1 > low; left_out += counts[high - 1]) --high;
  const auto edge = [&](size_t bin) { return values.range().low + static_cast<double>(bin) * values.width(); };
  // Zero stays inside: padding and ReLU are made of it.
  return {std::min(edge(low), 0.0), std::max(edge(high), 0.0)};
}

double squared_error(const Histogram& values, const ValueRange& range) {
  const double step = (range.high - range.low) / kActivationSteps, rounding = step * step / 12;
  double sum = 0;
  for (size_t bin = 0; bin < Histogram::kNumBins; ++bin) {
    const double value = values.middle(bin), cut_off = value - std::clamp(value, range.low, range.high);
    sum += values.counts()[bin] * (cut_off * cut_off + rounding);
  }
  return sum;
}

ValueRange least_squared_error(const Histogram& values) {
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
      {"min-max", "all values that were seen", [](const Histogram& values) { return values.range(); }},
      {"percentile", "all but a share of 0.00005 at each end", inner_range},
      {"mse", "the least mean squared error of the codes", least_squared_error}};
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
