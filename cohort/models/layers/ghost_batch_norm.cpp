// Ghost batch norm (Hoffer, Hubara, Soudry 2017, "Train longer, generalize better", section 4, algorithm 1), the normalisation of the
// batch-size study's ResNet-50 with groups of 32.
//
// Steps, training: split the samples in groups; batch-normalise each by its own statistics; average the groups' means and variances
// weighted by their samples; running = (1 - momentum) * running + momentum * average. Cost: one batch norm over the tensor and one copy of
// it.
// Where we differ: the paper updates the running statistics group after group, (1 - momentum)^groups, so they depend on how many groups
// a rank has; here they move once a step, so the average over ranks, weighted by samples, equals what one process computes. Micro-batches
// of one step (same step in the StepContext) count as one batch for the same reason, and a forward that is recomputed does not change the
// average.

#include "cohort/models/layers/ghost_batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/recompute.h"
#include "cohort/models/graph/step_context.h"

namespace cohort {

GhostBatchNorm2dImpl::GhostBatchNorm2dImpl(int64_t channels, int64_t ghost_size, double momentum, double epsilon)
    : torch::nn::Module("GhostBatchNorm2d"), ghost_size_(ghost_size), momentum_(momentum), epsilon_(epsilon) {
  if (channels < 1 || ghost_size < 1)
    fail(ErrorCode::kBadInput, "ghost batch norm: channels and ghost size must be at least 1, but they are ", channels, " and ",
         ghost_size);
  weight = register_parameter("weight", at::ones({channels}));
  bias = register_parameter("bias", at::zeros({channels}));
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
}

at::Tensor GhostBatchNorm2dImpl::forward(const at::Tensor& input) {
  const auto normalise = [&](const at::Tensor& x, const at::Tensor& mean, const at::Tensor& variance, bool training, double momentum) {
    return at::batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon_, /*cudnn_enabled=*/true);
  };
  if (!is_training()) return normalise(input, running_mean, running_var, false, momentum_);
  const int64_t num_samples = input.size(0);
  if (num_samples == 0) return input;

  at::Tensor mean = at::zeros_like(running_mean), variance = at::zeros_like(running_var);
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& group : input.split(ghost_size_)) {  // The backward of split() is one concatenation.
    // Momentum 1 makes torch store the group's own mean and unbiased variance.
    at::Tensor group_mean = at::zeros_like(running_mean), group_var = at::zeros_like(running_var);
    outputs.push_back(normalise(group, group_mean, group_var, true, 1.0));
    const bool single_value = group.numel() == running_mean.numel();  // The unbiased variance of one value is 0 / 0.
    const double weight_of_group = static_cast<double>(group.size(0)) / static_cast<double>(num_samples);
    mean.add_(group_mean, weight_of_group);
    if (!single_value) variance.add_(group_var, weight_of_group);
  }
  update_running(mean, variance, num_samples);
  return outputs.size() == 1 ? std::move(outputs.front()) : at::cat(outputs);
}

void GhostBatchNorm2dImpl::update_running(const at::Tensor& mean, const at::Tensor& variance, int64_t num_samples) {
  if (is_recomputing()) return;  // The first run already counted these samples.
  torch::NoGradGuard no_grad;
  const StepContext* context = current_step_context();
  if (context == nullptr) {
    step_ = -1;
    running_mean.lerp_(mean, momentum_);
    running_var.lerp_(variance, momentum_);
    return;
  }
  // A new step, or the statistics were written elsewhere since (a checkpoint was loaded, ranks were averaged).
  if (context->step != step_ || running_mean._version() != version_) {
    step_ = context->step;
    step_samples_ = 0;
    mean_before_ = running_mean.clone();
    var_before_ = running_var.clone();
    step_mean_ = at::zeros_like(mean);
    step_var_ = at::zeros_like(variance);
  }
  step_samples_ += num_samples;
  const double fraction = static_cast<double>(num_samples) / static_cast<double>(step_samples_);
  step_mean_.lerp_(mean, fraction);
  step_var_.lerp_(variance, fraction);
  running_mean.copy_(mean_before_.lerp(step_mean_, momentum_));
  running_var.copy_(var_before_.lerp(step_var_, momentum_));
  version_ = running_mean._version();
}

}  // namespace cohort
