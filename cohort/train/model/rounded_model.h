#pragma once
// Quantisation-aware training: layers that compute with rounded weights, and the rounding itself.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cohort/job/specs/small_specs.h"

namespace cohort {

class LayerGraph;

// Fake quantisation: floats rounded to what codes of few bits can say, with the gradient of what they were.

/// A matrix or kernel {rows, columns...}, float: symmetric, one scale a row or group of its columns, as encode_rows() has them.
at::Tensor rounded_weight(const at::Tensor& weight, const QuantiseAware& how);

/// {samples, ...}, float: 7 bits between the smallest and the largest number of each sample and zero.
at::Tensor rounded_samples(const at::Tensor& samples);

// Quantisation-aware training: the layers of a model compute with rounded weights while it trains, and the weights themselves stay exact.

struct RoundedModel {
  std::vector<std::string> tensors;     ///< Weights that are rounded,
  std::vector<std::string> left;        ///< "token.weight (of a module of another kind)": matrices and kernels that are not,
  std::vector<std::string> with_input;  ///< and layers whose inputs are rounded too.
};

/// Replaces the functions of the layers of `model`, which is whole and not yet divided. In eval mode they compute as before. Rounding is
/// done sample by sample and row by row, so no layout but tp changes it. Error(kBadInput) where no weight can be rounded.
RoundedModel round_while_training(LayerGraph& model, const QuantiseAware& how);

/// "quantize-aware 8: 4 tensors and the inputs of 4 layers are rounded while it trains; left: ..."
std::string describe_rounding(const std::string& how, const RoundedModel& model);

}  // namespace cohort
