#pragma once
// Activation checkpointing: recomputes activations in backward instead of keeping them, for less memory and about a third more time. Works
// for any module in any program:
//
//   x = cohort::recompute([block](const at::Tensor& t) { return block->forward(t); }, x);
//
// See recompute.cpp for how; source: Chen et al. 2016, "Training deep nets with sublinear memory cost".

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "cohort/base/export.h"

namespace torch::nn {
class Module;
}

namespace cohort {

/// Runs `function(inputs)` without keeping what its operators save; backward runs it again, with the same random numbers (LibTorch's
/// generators and the step context) and autocast state. The result is an ordinary part of the graph: inputs, parameters and other tensors
/// that the function reads get the same gradients as without it, once, when backward() reaches them, so hooks, DataParallel and the ZeRO
/// strategies work unchanged. Inputs may be undefined, integers, or need no gradient. Calls may be nested.
///
/// `function` is copied; what it refers to must live until backward, and be in the same training mode then. `module`, where given, must
/// live until backward too: its buffers (batch-norm statistics) keep what the first run made of them. With gradients disabled: a plain
/// call, of which nothing is kept.
///
/// Error(kBadInput): an output is undefined; backward(create_graph); backward after a parameter or an input was changed (an optimizer
/// step). Error(kFailed): the second run reads other parameters, or gives other outputs, than the first. What `function` throws passes
/// through.
COHORT_API std::vector<at::Tensor> recompute(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                                             const std::vector<at::Tensor>& inputs, torch::nn::Module* module = nullptr);
COHORT_API at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                                torch::nn::Module* module = nullptr);

/// Whether this thread is inside of such a second run: layers that keep statistics must not count it twice.
COHORT_API bool is_recomputing();

}  // namespace cohort
