#pragma once
// What the layers of a model do and give for real samples: which range of values the codes of an activation span, and what a layer does, as
// far as int8 kernels care.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/infer/compressed/compressed_form.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

// What the layers of a model give for real samples, and which range of it the codes of an activation span: how often there is which value,
// the table of methods that choose a range, and the scales that follow.

// How often a tensor had which values, of all samples of a calibration. Torch-free.

struct ValueRange {
  double low = 0, high = 0;
};

/// Bins of equal width over a range that holds zero, because codes have to have one for it. Values outside are counted in the last bin of
/// their side, those that are no number not at all.
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
  double middle(size_t bin) const { return range_.low + (static_cast<double>(bin) + 0.5) * width(); }
  const std::vector<double>& counts() const { return counts_; }

 private:
  ValueRange range_;
  std::vector<double> counts_ = std::vector<double>(kNumBins);
  double total_ = 0;
};

// Which range of values the codes of an activation are to span: the table of methods. A small range has fine steps and cuts
// values off, a large one the other way round. Torch-free.

/// Steps between the codes 0 and 127 of an activation.
inline constexpr int kActivationSteps = 127;

struct RangeMethod {
  std::string name, help;
  std::function<ValueRange(const Histogram&)> choose;  ///< A range that holds zero, within the histogram's; of one that is not empty.
};

/// In the order of their help.
const std::vector<RangeMethod>& range_methods();
/// Error(kBadInput) that suggests the nearest.
const RangeMethod& find_range_method(const std::string& name);

// What the layers of a model give for real samples: what ranges of activations are chosen from.

/// The inputs of layer `index`, where the model got `input` and its layers gave `outputs`.
LayerGraph::Inputs inputs_of(const LayerGraph& model, size_t index, const at::Tensor& input, const std::vector<at::Tensor>& outputs);
/// What each layer gives for `input`.
std::vector<at::Tensor> run_layers(const LayerGraph& model, const at::Tensor& input);

/// Scales of the codes of a model's input and of each layer's output; none where that is no floats, or not finite.
struct ActivationScales {
  std::optional<CodeScale> input;
  std::vector<std::optional<CodeScale>> outputs;

  const std::optional<CodeScale>& of(int layer) const { return layer < 0 ? input : outputs.at(static_cast<size_t>(layer)); }
};

/// Codes 0 to 127 over `range`; zero has a code of its own.
CodeScale scale_of_range(const ValueRange& range);

/// Runs `model`, in eval mode, on each of `batches` twice: for the least and largest values, then for how often there is which.
ActivationScales observe_activations(const LayerGraph& model, const std::vector<at::Tensor>& batches, const RangeMethod& method);

// What each layer of a model does, as far as int8 kernels care. A layer's kind is a word that its author chose, so what it does is compared
// with what its kind promises, on real samples.

struct LayerFacts {
  enum class Does {
    kConvolution,  ///< torch::nn::Conv2d, and nothing else.
    kProduct,      ///< torch::nn::Linear.
    kBlock,        ///< cohort's TransformerBlock.
    kNorm,         ///< Batch norm by running statistics: a factor and a shift a channel.
    kRelu,
    kSum,      ///< left + right.
    kThrough,  ///< Does to int8 codes what it does to floats: pooling, flatten, padding.
    kOther,
  };
  Does does = Does::kOther;
  bool has_weights = false;     ///< A matrix or kernel, which can be kept as codes.
  std::string why_float;        ///< Of a layer with weights: why it has no int8 kernel; "" where it has one.
  std::optional<size_t> norm;   ///< The batch norm that can be folded into this convolution,
  std::optional<size_t> relu;   ///< and the ReLU behind it, or behind this product or sum.
  std::vector<size_t> readers;  ///< Layers that read its output.

  /// The layer whose output this one gives when it does what it can absorb.
  size_t last(size_t own) const { return relu ? *relu : norm ? *norm : own; }
};

/// `model` in eval mode; `input`: real samples, some dozens.
std::vector<LayerFacts> examine_layers(const LayerGraph& model, const at::Tensor& input);

/// gamma / sqrt(variance + epsilon) and beta - mean * that, {channels}; none for what is no batch norm over pictures.
struct NormFactors {
  at::Tensor factor, shift;
};
std::optional<NormFactors> norm_factors(const torch::nn::Module* module);

}  // namespace cohort
