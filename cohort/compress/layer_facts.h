#pragma once
// What quantisation needs to know of a model's layers: the scales of their activations, measured on real samples, and what each layer
// computes, as far as int8 kernels are concerned.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/infer/compressed/compressed_form.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

// The range of an activation.

struct ValueRange {
  double low = 0, high = 0;
};

/// Counts values in bins of equal width over a range that is extended to hold zero, which needs a code of its own. Values outside count in
/// the nearest bin; NaN is ignored. Torch-free.
class Histogram {
 public:
  static constexpr size_t kNumBins = 2048;

  Histogram() = default;
  explicit Histogram(ValueRange range);

  void add(std::span<const float> values);

  const ValueRange& range() const { return range_; }
  bool is_empty() const { return total_ == 0; }
  double total() const { return total_; }
  double width() const { return (range_.high - range_.low) / kNumBins; }
  double center(size_t bin) const { return range_.low + (static_cast<double>(bin) + 0.5) * width(); }
  const std::vector<double>& counts() const { return counts_; }

 private:
  ValueRange range_;
  std::vector<double> counts_ = std::vector<double>(kNumBins);
  double total_ = 0;
};

/// The largest code of an activation; the least is 0.
inline constexpr int kActivationSteps = 127;

struct RangeMethod {
  std::string name;
  ValueRange (*choose)(const Histogram&);  ///< A range within that of the histogram, which is not empty; it holds zero.
};
/// One row for each calibration method (described in the .cpp).
const std::vector<RangeMethod>& range_methods();
/// Error(kBadInput) that suggests the nearest name.
const RangeMethod& find_range_method(const std::string& name);

/// The output of each layer for `input`.
std::vector<at::Tensor> run_layers(const LayerGraph& model, const at::Tensor& input);

/// Scales of the model's input and of each layer's output; none for a tensor that is not of floats or not finite.
struct ActivationScales {
  std::optional<CodeScale> input;
  std::vector<std::optional<CodeScale>> outputs;

  const std::optional<CodeScale>& of(int layer) const { return layer < 0 ? input : outputs.at(static_cast<size_t>(layer)); }
};

/// Runs `model`, in eval mode, on each of `batches` twice: for the extreme values, then for the histograms.
ActivationScales observe_activations(const LayerGraph& model, const std::vector<at::Tensor>& batches, const RangeMethod& method);

// What a layer computes. Its kind is a word that its author chose, so its output on real samples is compared with what the kind promises.

struct LayerFacts {
  enum class Does {
    kConvolution,  ///< torch::nn::Conv2d and nothing else.
    kProduct,      ///< torch::nn::Linear.
    kBlock,        ///< cohort::TransformerBlock.
    kNorm,         ///< Batch norm by running statistics: a factor and a shift a channel.
    kRelu,
    kSum,      ///< left + right.
    kThrough,  ///< Applies to int8 codes as to floats: pooling, flatten, padding.
    kOther,
  };
  Does does = Does::kOther;
  bool has_weights = false;     ///< Has a matrix or kernel, which can be stored as codes.
  std::string why_float;        ///< For a layer with weights: why it has no int8 kernel; "" where it has one.
  std::optional<size_t> norm;   ///< The batch norm that can be folded into this convolution.
  std::optional<size_t> relu;   ///< The ReLU that can be merged into this convolution, product or sum.
  std::vector<size_t> readers;  ///< Layers that read its output.

  /// The last layer that this one (number `own`) can absorb, else itself.
  size_t last(size_t own) const { return relu ? *relu : norm ? *norm : own; }
};

/// `model` in eval mode; `input`: some dozens of real samples.
std::vector<LayerFacts> examine_layers(const LayerGraph& model, const at::Tensor& input);

/// gamma / sqrt(variance + epsilon) and beta - mean * that, {channels}; none for modules other than batch norms over pictures.
struct NormFactors {
  at::Tensor factor, shift;
};
std::optional<NormFactors> norm_factors(const torch::nn::Module* module);

}  // namespace cohort
