#pragma once
// Batch norm over groups of a fixed number of samples ("ghost batches"), so that the batch size can grow or be divided over ranks without
// changing what the layer computes.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace cohort {

class GhostBatchNorm2dImpl : public torch::nn::Module {
 public:
  /// Error(kBadInput) unless channels and ghost_size are at least 1.
  GhostBatchNorm2dImpl(int64_t channels, int64_t ghost_size, double momentum = 0.1, double epsilon = 1e-5);

  /// {samples, channels, height, width} -> the same shape. Training: each group of ghost_size consecutive samples (the last may be smaller)
  /// by its own mean and variance, and the running statistics move once. Evaluation: by the running statistics.
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;               ///< {channels}
  at::Tensor running_mean, running_var;  ///< {channels}, buffers; the variance is the unbiased one, as torch keeps it.

 private:
  void update_running(const at::Tensor& mean, const at::Tensor& variance, int64_t num_samples);

  int64_t ghost_size_;
  double momentum_, epsilon_;

  // The step of the last update, its samples so far, the version of the statistics after it, their values before it, and its averages.
  int64_t step_ = -1, step_samples_ = 0, version_ = -1;
  at::Tensor mean_before_, var_before_, step_mean_, step_var_;
};
TORCH_MODULE(GhostBatchNorm2d);

}  // namespace cohort
