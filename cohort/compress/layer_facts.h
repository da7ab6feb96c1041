#pragma once
// What each layer of a model does, as far as int8 kernels care. A layer's kind is a word that its author chose, so what it does is compared
// with what its kind promises, on real samples.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort {

class LayerGraph;

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
