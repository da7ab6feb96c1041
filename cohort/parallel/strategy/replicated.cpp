#include "cohort/parallel/strategy/replicated.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <chrono>
#include <cmath>

#include "cohort/base/clock.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/plan/cost/memory.h"

namespace cohort {
namespace {

std::vector<Segment> whole_segments(const std::vector<NamedTensor>& parameters) {
  std::vector<Segment> segments;
  for (const auto& [name, tensor] : parameters)
    segments.push_back({name, tensor.sizes().vec(), 0, alias_of(tensor.detach(), 0, {tensor.numel()})});
  return segments;
}

double squared_norm_of(const at::Tensor& gradient) {
  if (gradient.is_cpu()) return squared_norm(gradient.data_ptr(), gradient.numel(), gradient.scalar_type());
  return gradient.to(at::kDouble).square().sum().item<double>();
}

DataParallelOptions summed(DataParallelOptions options) {
  options.mean = GradientMean::kSum;
  return options;
}

}  // namespace

StepOutcome judge_gradient(double norm_squared, const StepOptions& options, double* factor) {
  StepOutcome outcome;
  if (options.add_other_parts) norm_squared = options.add_other_parts(norm_squared);
  outcome.skipped = options.check_finite && !std::isfinite(norm_squared);
  if (options.clip_norm <= 0) return outcome;
  outcome.gradient_norm = std::sqrt(norm_squared) * std::abs(*factor);
  // As in LibTorch's and PyTorch's clip_grad_norm_(), including the 1e-6.
  const double scale = options.clip_norm / (outcome.gradient_norm + 1e-6);
  if (scale < 1) *factor *= scale;
  return outcome;
}

Replicated::Replicated(torch::nn::Module& module, Group group, UpdateRule rule, DataParallelOptions options)
    : module_(module),
      group_(group),
      compresses_(options.compress != "none" && group.size() > 1),
      all_(distinct_parameters(module)),
      trained_(trained_parameters(all_)),
      parallel_(module, std::move(group), summed(options)),
      optimizer_(rule, whole_segments(trained_)) {
  for (const NamedTensor& parameter : all_) weight_watch_.add(parameter, parameter.tensor.requires_grad());
}

void Replicated::set_gradient_factor(double factor) {
  Strategy::set_gradient_factor(factor);
  if (compresses_) parallel_.set_gradient_factor(factor);
}

void Replicated::load_weights() {
  take_over();
  broadcast_model(module_, group_);
}

void Replicated::take_over() {
  weight_watch_.check();
  if (weight_watch_.any_replaced()) weight_watch_.take_over();
}

void Replicated::zero_grad() {
  take_over();
  if (parallel_.backward_failed()) parallel_.abandon_step();
  for (NamedTensor& parameter : trained_) parameter.tensor.mutable_grad() = at::Tensor();
}

StepOutcome Replicated::step(const StepOptions& options) {
  at::NoGradGuard no_grad;
  take_over();
  const auto began = std::chrono::steady_clock::now();
  StepOutcome outcome;
  double factor = compresses_ ? 1 : gradient_factor();
  for (const auto& [name, tensor] : trained_) {
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  }
  if (options.clip_norm > 0 || options.check_finite) {
    double total = 0;
    for (const auto& [name, tensor] : trained_)
      if (tensor.grad().defined() && counts(name)) total += squared_norm_of(tensor.grad());
    outcome = judge_gradient(total, options, &factor);
  }
  if (outcome.skipped) parallel_.forget_exchange();
  for (size_t i = 0; i < trained_.size() && !outcome.skipped; ++i)
    if (const at::Tensor& gradient = trained_[i].tensor.grad(); gradient.defined())
      optimizer_.update(i, gradient, options.learning_rate, factor);
  outcome.update_seconds = seconds_since(began);
  return outcome;
}

MemoryForecast Replicated::memory_forecast() const {
  const int64_t trained = total_bytes(trained_);
  const StateBytes state = strategy_memory({.trained_bytes = trained, .frozen_bytes = total_bytes(all_) - trained});
  return {state.weights, state.gradients, optimizer_.state_bytes()};
}

std::vector<FlatPiece> Replicated::saved_pieces() {
  take_over();
  return group_.rank() == 0 ? pieces(/*saving=*/true) : parallel_.compressor_state(/*saving=*/true);
}

std::vector<FlatPiece> Replicated::loaded_pieces() {
  take_over();
  return pieces(/*saving=*/false);
}

std::vector<FlatPiece> Replicated::pieces(bool saving) {
  std::vector<FlatPiece> pieces = optimizer_.state(saving);
  for (FlatPiece& piece : parallel_.compressor_state(saving)) pieces.push_back(std::move(piece));
  for (const auto& [name, tensor] : all_) pieces.push_back(whole_piece("model/" + name, tensor));
  return pieces;
}

void Replicated::loaded() {
  optimizer_.load_counts();
  group_.barrier();
}

}  // namespace cohort
