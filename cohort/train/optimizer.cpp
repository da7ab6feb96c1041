#include "cohort/train/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cohort/base/error.h"

namespace cohort {

Optimizer::Optimizer(const Config& config, std::vector<NamedTensor> parameters) : config_(config) {
  at::NoGradGuard no_grad;
  for (NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    if (!parameter.tensor.is_floating_point() || !parameter.tensor.is_contiguous())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name,
           " cannot be trained: the fused optimizers need contiguous floating-point numbers");
    tensors_.push_back(parameter.tensor);
    parameters_.push_back(std::move(parameter));
  }
  const auto add_slot = [&](const std::string& name, bool scalar) {
    Slot slot{name, {}};
    for (const at::Tensor& tensor : tensors_)
      slot.tensors.push_back(scalar ? at::zeros({}, tensor.options().dtype(at::kFloat).requires_grad(false))
                                    : at::zeros_like(tensor.detach()));
    slots_.push_back(std::move(slot));
  };
  if (config.optimizer == "momentum" || config.optimizer == "nesterov") {
    add_slot("momentum", false);
  } else if (config.optimizer != "sgd") {
    add_slot("exp_avg", false);
    add_slot("exp_avg_sq", false);
    add_slot("step", true);
  }
}

std::vector<at::Tensor> Optimizer::with_gradient(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors_[i].grad().defined()) out.push_back(tensors[i]);
  return out;
}

void Optimizer::step(double learning_rate) {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = with_gradient(tensors_);
  if (parameters.empty()) return;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].grad().defined()) continue;
    if (tensors_[i].grad().is_sparse()) tensors_[i].mutable_grad() = tensors_[i].grad().to_dense();
    gradients.push_back(tensors_[i].grad());
  }
  if (slots_.size() <= 1) {
    // A momentum of zeros makes the first step v = m 0 + g, the same as LibTorch's special first step.
    const std::vector<at::Tensor> momenta = slots_.empty() ? std::vector<at::Tensor>{} : with_gradient(slots_[0].tensors);
    at::_fused_sgd_(parameters, gradients, momenta, config_.weight_decay, slots_.empty() ? 0.0 : config_.momentum, learning_rate,
                    /*dampening=*/0.0, config_.optimizer == "nesterov", /*maximize=*/false, /*is_first_step=*/false);
    return;
  }
  const std::vector<at::Tensor> averages = with_gradient(slots_[0].tensors), squares = with_gradient(slots_[1].tensors);
  const std::vector<at::Tensor> steps = with_gradient(slots_[2].tensors);
  for (const at::Tensor& count : steps) const_cast<at::Tensor&>(count).add_(1);
  const auto kernel = [&](auto function) {
    function(parameters, gradients, averages, squares, at::TensorList{}, steps, learning_rate, config_.beta1, config_.beta2,
             config_.weight_decay, config_.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (config_.optimizer == "adamw") kernel([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else kernel([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

void Optimizer::zero_grad() {
  for (at::Tensor& tensor : tensors_) tensor.mutable_grad() = at::Tensor();
}

double Optimizer::clip_gradients(double max_norm) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : tensors_)
    if (tensor.grad().defined() && tensor.numel() > 0) gradients.push_back(tensor.grad());
  if (gradients.empty()) return 0;
  const double norm = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble).norm().item<double>();
  if (max_norm > 0 && norm > max_norm) at::_foreach_mul_(gradients, at::Scalar(max_norm / norm));
  return norm;
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> out;
  for (const Slot& slot : slots_)
    for (size_t i = 0; i < parameters_.size(); ++i) out.push_back({parameters_[i].name + "/" + slot.name, slot.tensors[i]});
  return out;
}

double learning_rate_at(const Config& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  if (config.schedule_lr == "constant") return config.lr;
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - config.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  const double shape = config.schedule_lr == "linear" ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return config.lr * (config.lr_end_factor + (1 - config.lr_end_factor) * shape);
}

}  // namespace cohort
