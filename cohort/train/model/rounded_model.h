#pragma once
// Quantisation-aware training (--quantize-aware): layers compute with rounded weights, and the weights themselves stay exact.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cohort/job/specs/small_specs.h"

namespace cohort {

class LayerGraph;

/// Fake quantisation of a float matrix or kernel {rows, columns...}: symmetric, one scale a row or group of its columns, as encode_rows().
at::Tensor rounded_weight(const at::Tensor& weight, const QuantiseAware& how);

/// Fake quantisation of floats {samples, ...}: 7 bits for the range of each sample and zero.
at::Tensor rounded_samples(const at::Tensor& samples);

struct RoundedModel {
  std::vector<std::string> tensors;     ///< Weights that are rounded,
  std::vector<std::string> left;        ///< matrices and kernels that are not: "token.weight (of a module of another kind)",
  std::vector<std::string> with_input;  ///< and layers whose inputs are rounded too.
};

/// Replaces the functions of the layers of `model`, which is whole. In eval mode they compute as before. Samples and rows are rounded one
/// by one, so only tp changes the result. Error(kBadInput) if no weight can be rounded.
RoundedModel round_while_training(LayerGraph& model, const QuantiseAware& how);

/// "quantize-aware 8: 4 tensors and the inputs of 4 layers are rounded while it trains; left: ..."
std::string describe_rounding(const std::string& how, const RoundedModel& model);

}  // namespace cohort
