#pragma once
// Recomputing activations in backward instead of keeping them (activation checkpointing): less memory for about a third more time. For any
// module, in any program:
//
//   x = cohort::recompute([&](const at::Tensor& t) { return block->forward(t); }, x);
//
// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cohort {

/// Runs `function(inputs)` without keeping what its operators save; backward runs it again, with the same random numbers (LibTorch's
/// generator and the step context), autocast state and training mode, and accumulates into the `.grad` of the parameters that it reads.
/// Inputs that need gradients get theirs. With gradients disabled: a plain call. `module`, where given: its buffers (batch-norm statistics)
/// keep what the first run made of them. backward(create_graph) is refused: Error(kBadInput).
std::vector<at::Tensor> recompute(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                                  const std::vector<at::Tensor>& inputs, torch::nn::Module* module = nullptr);
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                     torch::nn::Module* module = nullptr);

/// Whether this thread is inside of such a second run: layers that count what they see must not count it twice.
bool is_recomputing();

}  // namespace cohort
