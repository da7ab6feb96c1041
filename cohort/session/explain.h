#pragma once
// What LibTorch's own errors leave out: in which call of ours, in which layer, with which tensors. Private to session/.

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <exception>
#include <string>
#include <vector>

#include "cohort/session/parallel.h"

namespace cohort {

/// Throws an Error that says `what`, then LibTorch's sentence: kBadInput, but kFailed where it is no fault of the program (no memory).
[[noreturn]] void explain(const std::exception& error, const std::string& what);

/// sequential.forward(input), and a layer that LibTorch will not run is named.
at::Tensor forward_by_layers(torch::nn::SequentialImpl& sequential, const at::Tensor& input);

/// The program's loss: one number, or Error(kBadInput).
at::Tensor checked_loss(const LossFunction& loss, const at::Tensor& output, const at::Tensor& target);
/// Error(kBadInput) unless there is a row of the target for each of the input.
void check_target(const at::Tensor& input, const at::Tensor& target);

/// The weights that a Parallel is about to change: what a forward before that has kept for its backward is not theirs any more, and
/// LibTorch refuses that backward under every layout.
class ChangedWeights {
 public:
  ChangedWeights() = default;
  explicit ChangedWeights(const torch::nn::Module& module);
  /// Once Parallel is made.
  void look_again();
  /// Whether LibTorch's text, of a backward() that failed, is about one of them; its name, or "".
  std::string named_in(const std::string& text) const;

 private:
  struct Weight {
    std::string name;
    at::Tensor tensor;
    std::vector<int64_t> sizes;  ///< Before it was divided.
    int64_t version, version_after;
  };
  std::vector<Weight> weights_;
};

}  // namespace cohort
