#pragma once
// Where numbers stopped being finite, for the message that ends a training.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/models/graph/layer_graph.h"

namespace cohort {

/// The first tensor of `model` that is not finite, in the order of its layers: a weight or running statistic; else, where `input` is a
/// tensor, the input or a layer's output on it, for which the layers run once more, without gradients. "; the first tensor that is not
/// finite: the output of layer 'c' (linear), (64, 10), 3 of 640 elements; the largest of what it takes is 2e+38". Where all are finite that
/// is said. Layers whose ranks exchange must be called on all ranks, so give them no input.
std::string first_not_finite(const LayerGraph& model, const at::Tensor& input);

/// Error(kFailed) in one line: that `which` ("the loss") is not finite after the forward of `step`, counted from 0; what may help: a rate
/// smaller than `rate`, and `others`, as name_settings() has them; `where`: what first_not_finite() found.
[[noreturn]] void fail_not_finite(const LayerGraph& model, const std::string& which, double loss, int64_t step, double rate,
                                  const std::string& others, const std::string& where);

}  // namespace cohort
