#pragma once
// Adds context to LibTorch's errors: the call, the layer and the tensors. Private to session/.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <exception>
#include <string>
#include <vector>

#include "cohort/session/parallel.h"

namespace cohort {

/// Throws an Error with `what` and LibTorch's message: kBadInput, or kFailed if the program is not the cause (out of memory).
[[noreturn]] void explain(const std::exception& error, const std::string& what);

/// sequential.forward(input) with errors that name the layer.
at::Tensor forward_by_layers(torch::nn::SequentialImpl& sequential, const at::Tensor& input);

/// The program's loss. Error(kBadInput) unless it is one floating-point number with a gradient.
at::Tensor checked_loss(const LossFunction& loss, const at::Tensor& output, const at::Tensor& target);
/// Error(kBadInput) unless the target has as many rows as the input.
void check_target(const at::Tensor& input, const at::Tensor& target);

/// The weights that a Parallel replaces when it is made. LibTorch refuses a backward() of a forward before that; this explains its error.
class ChangedWeights {
 public:
  ChangedWeights() = default;
  explicit ChangedWeights(const torch::nn::Module& module);
  /// Called when Parallel is made.
  void look_again();
  /// The name of the weight that LibTorch's error of a failed backward() is about; "": none.
  std::string named_in(const std::string& text) const;

 private:
  struct Weight {
    std::string name;
    at::Tensor tensor;
    std::vector<int64_t> sizes;  // Before it was divided.
    int64_t version, version_after;
  };
  std::vector<Weight> weights_;
};

}  // namespace cohort
