#pragma once
// The optimizers of a run, on LibTorch's fused kernels: one pass over parameters, gradients and state instead of one per arithmetic
// operation.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/config.h"
#include "cohort/parallel/parameters.h"

namespace cohort {

/// sgd, momentum, nesterov, adam, adamw with LibTorch's definitions (momentum: v = m v + g; p -= lr v; weight decay as an L2 term but in
/// adamw). Kernels: at::_fused_sgd_, _fused_adam_, _fused_adamw_; the tests hold them against torch::optim. One thread.
class Optimizer {
 public:
  /// Error(kBadInput) naming the parameter where the kernels cannot update one (integer or complex numbers, not contiguous).
  Optimizer(const Config& config, std::vector<NamedTensor> parameters);

  /// Updates every parameter that has a gradient; the others, and their state, stay as they are.
  void step(double learning_rate);
  /// Leaves all parameters without gradient.
  void zero_grad();
  /// Scales all gradients so that their global 2-norm is at most `max_norm` (no scaling for 0); returns the norm before.
  double clip_gradients(double max_norm);

  /// The state as tensors named "PARAMETER/SLOT" (slots: momentum; exp_avg, exp_avg_sq, step), to be saved, or filled in place when a run
  /// goes on.
  std::vector<NamedTensor> state() const;

 private:
  struct Slot {
    std::string name;
    std::vector<at::Tensor> tensors;  ///< One a parameter.
  };
  std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& tensors) const;

  Config config_;
  std::vector<NamedTensor> parameters_;
  std::vector<at::Tensor> tensors_;
  std::vector<Slot> slots_;
};

/// Learning rate of `step` (from 0) of `total_steps`: warm-up from lr/warmup to lr, then constant, linear or cosine down to lr x
/// lr_end_factor.
double learning_rate_at(const Config& config, int64_t step, int64_t total_steps);

}  // namespace cohort
