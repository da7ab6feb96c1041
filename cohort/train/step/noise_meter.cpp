// The noise scale of a step, from the gradients of its pieces (one micro-batch on one rank) and of the whole batch.
//
// Piece i has b_i of the B samples; its loss is weighted so that backward() yields c_i = (b_i / B) g_i, g_i the mean gradient of its
// samples. All c_i, over micro-batches and ranks, add up to the gradient g that is applied.
//   1. A hook on each parameter sees the gradient of one backward() before it is added to others or leaves for the exchange, and adds its
//      squared norm: after a backward() the sum has grown by (B / b_i) |c_i|^2 = (b_i / B) |g_i|^2.
//   2. That sum, and the number k of pieces with samples, travel to all ranks among the control numbers of the strategy.
//   3. The strategy computes |g|^2 as it does for clipping: from slices where gradients are divided.
//   4. Estimates from (sum, B / k) and (|g|^2, B), and their running means (study/noise/noise_scale.h).
//
// Pieces of unequal sizes. For any weights w_i that add up to 1, E sum w_i |g_i|^2 = |G|^2 + tr(Sigma) sum w_i / b_i: a small batch of
// 1 / sum(w_i / b_i) samples. With w_i = b_i / B that is B / k, the mean size of a piece, and the estimate of tr(Sigma) becomes
// sum b_i |g_i - g|^2 / (k - 1): the pooled sample variance, which for Gaussian noise has the least variance of all unbiased ones.
//
// Cost of a measuring step and rank, n gradient elements, m micro-batches: m reads of n while they are in the cache, one more read of the
// mean's part that the rank has, no message of its own (with one copy of the weights, and with ZeRO, one number, as for clipping). Where
// gradients are compressed, what is applied is not the mean: then it is also summed uncompressed, 4 n bytes of memory and an all-reduce.
// Other steps: one call of a hook for each parameter.
//
// Source: McCandlish et al., 2018, 1812.06162, appendix A.1 (equal pieces, one a rank). Differences: any pieces, divided gradients.
#include "cohort/train/step/noise_meter.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/common/vector_loops.h"

namespace cohort {
namespace {

double squared_norm_of(at::Tensor gradient) {
  if (gradient.is_sparse()) gradient = gradient.coalesce().values();
  if (!gradient.is_cpu()) return gradient.to(at::kDouble).square().sum().item<double>();
  if (gradient.scalar_type() != at::kDouble) gradient = gradient.to(at::kFloat);
  gradient = gradient.contiguous();
  return squared_norm(gradient.const_data_ptr(), gradient.numel(), gradient.scalar_type());
}

}  // namespace

NoiseMeter::NoiseMeter(const torch::nn::Module& model, Strategy& strategy, Group group, NoiseMeterOptions options)
    : strategy_(strategy), group_(std::move(group)), options_(options) {
  if (options_.every < 1) fail(ErrorCode::kBadInput, "the noise scale every ", options_.every, " steps; it must be at least 1");
  int64_t elements = 0;
  for (const NamedTensor& parameter : distinct_parameters(model)) {
    if (!parameter.tensor.requires_grad()) continue;
    const size_t index = parameters_.size();
    parameters_.push_back(parameter.tensor);
    offsets_.push_back(elements);
    elements += parameter.tensor.numel();
    hooks_.push_back(parameter.tensor.register_hook([this, index](const at::Tensor& gradient) { on_gradient(index, gradient); }));
  }
  if (options_.exchange_exactly) sums_ = at::zeros({elements}, at::kFloat);
}

NoiseMeter::~NoiseMeter() {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].remove_hook(hooks_[i]);
}

void NoiseMeter::begin_step(int64_t number, int64_t global_samples, double gradient_factor) {
  measures_ = (number + 1) % options_.every == 0;
  in_piece_ = false;
  if (!measures_) return;
  step_ = number + 1;
  global_samples_ = global_samples;
  gradient_factor_ = gradient_factor;
  num_pieces_ = 0;
  squares_ = 0;
  if (sums_.defined()) sums_.zero_();
  strategy_.set_control(kSquaresSlot, 0);
  strategy_.set_control(kPiecesSlot, 0);
}

void NoiseMeter::begin_piece(int64_t samples) {
  in_piece_ = measures_ && samples > 0;
  if (!in_piece_) return;
  piece_weight_ = gradient_factor_ * gradient_factor_ * static_cast<double>(global_samples_) / static_cast<double>(samples);
  strategy_.set_control(kPiecesSlot, static_cast<float>(++num_pieces_));
}

/// Runs in backward(). The exchange may begin right after the last gradient, so each one updates the control number.
void NoiseMeter::on_gradient(size_t parameter, const at::Tensor& gradient) {
  if (!in_piece_ || !gradient.defined()) return;
  at::NoGradGuard no_grad;
  squares_ += piece_weight_ * squared_norm_of(gradient);
  strategy_.set_control(kSquaresSlot, static_cast<float>(squares_));
  if (sums_.defined())
    sums_.narrow(0, offsets_[parameter], gradient.numel()).add_((gradient.is_sparse() ? gradient.to_dense() : gradient).reshape({-1}));
}

double NoiseMeter::clip_norm(double asked) const { return measures_ && asked <= 0 ? std::numeric_limits<double>::infinity() : asked; }

/// The squared norm of the mean of uncompressed gradients.
double NoiseMeter::exact_squared_norm() {
  at::NoGradGuard no_grad;
  if (group_.size() > 1) group_.all_reduce_sum(sums_, "the gradient for the noise scale");
  return gradient_factor_ * gradient_factor_ * squared_norm_of(sums_);
}

std::optional<NoiseRecord> NoiseMeter::end_step(const StepOutcome& outcome) {
  if (!measures_) return std::nullopt;
  in_piece_ = false;
  NoiseRecord reading{.step = step_, .large_batch = static_cast<double>(global_samples_)};
  reading.large_squared = sums_.defined() ? exact_squared_norm() : outcome.gradient_norm * outcome.gradient_norm;
  reading.small_squared = strategy_.control_sum(kSquaresSlot);
  const double num_pieces = strategy_.control_sum(kPiecesSlot);
  if (outcome.skipped || num_pieces < 2 || !std::isfinite(reading.large_squared) || !std::isfinite(reading.small_squared))
    return std::nullopt;
  reading.small_batch = reading.large_batch / num_pieces;
  recent_.add(reading.small_squared, reading.small_batch, reading.large_squared, reading.large_batch);
  reading.gradient_squared = recent_.mean().gradient_squared;
  reading.trace = recent_.mean().trace;
  reading.noise_scale = recent_.noise_scale();
  return reading;
}

Json NoiseMeter::state() const {
  return Json{
      {"measurements", recent_.num_steps()}, {"gradient_squared", recent_.mean().gradient_squared}, {"trace", recent_.mean().trace}};
}

void NoiseMeter::load(const Json& state) {
  recent_.restore(state.at("measurements").get<int64_t>(), {state.at("gradient_squared").get<double>(), state.at("trace").get<double>()});
}

}  // namespace cohort
