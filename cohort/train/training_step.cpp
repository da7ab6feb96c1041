#include "cohort/train/training_step.h"

#include <ATen/core/Generator.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/random.h"
#include "cohort/models/step_context.h"
#include "cohort/train/batch_tensors.h"
#include "cohort/train/optimizer.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

enum Control { kLoss, kStop };

LossScaler scaler_for(const Config& config, Precision precision) {
  if (!needs_loss_scale(precision)) return LossScaler::none();
  if (config.loss_scale > 0) return LossScaler({.initial = config.loss_scale, .dynamic = false});
  return LossScaler();
}

}  // namespace

TrainingStep::TrainingStep(const Config& config, const DataShape& shape, LayerGraph& model, Strategy& strategy, TrainingStepOptions options)
    : config_(config),
      shape_(shape),
      model_(model),
      strategy_(strategy),
      options_(options),
      precision_(parse_precision(config.precision)),
      scaler_(scaler_for(config, precision_)) {}

/// Each micro-batch's loss is weighted by its samples / all samples of the step, so that gradients add up to that of the mean.
void TrainingStep::forward_backward(LoadedBatch& loaded, int64_t number) {
  const std::vector<Share>& pieces = loaded.pieces;
  const auto runs = [&](size_t piece) { return pieces[piece].size() > 0 || options_.empty_forward; };
  size_t last = pieces.size();
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    if (runs(piece)) last = piece;
  strategy_.set_control(kLoss, 0);
  if (last == pieces.size()) return strategy_.exchange_without_backward();

  BatchTensors whole = as_tensors(loaded.batch, shape_);
  whole.input = whole.input.to(options_.device);
  whole.target = whole.target.to(options_.device);
  double loss_sum = 0;
  int64_t offset = 0;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    if (!runs(piece)) continue;
    const int64_t count = pieces[piece].size();
    const StepContextScope context({config_.seed, number, pieces[piece].begin});
    const at::Tensor input = whole.input.narrow(0, offset, count), target = whole.target.narrow(0, offset, count);
    at::Tensor loss;
    offset += count;
    {
      const AutocastScope autocast(precision_, options_.device.type());
      const at::Tensor logits = for_loss(model_.forward(input));
      loss = count > 0 ? cross_entropy(logits, target) : logits.sum();
    }
    loss = loss * (static_cast<double>(count) / static_cast<double>(loaded.global_samples));
    loss_sum += loss.item<double>();
    if (scaler_.scale() != 1) loss = loss * scaler_.scale();
    strategy_.set_sync(piece == last);
    strategy_.set_control(kLoss, static_cast<float>(loss_sum));
    loss.backward();
  }
}

StepResult TrainingStep::run(int64_t number, LoadedBatch& batch) {
  StepResult out;
  StepMetrics& m = out.metrics;
  const auto start = Clock::now();
  // A user's model may draw from LibTorch's generator; this makes it a function of (seed, step, rank), so that a resumed run draws the
  // same.
  torch::manual_seed(random_bits(config_.seed, number, options_.rank));
  strategy_.zero_grad();
  strategy_.set_buffer_share(static_cast<double>(batch.num_local_samples()) / static_cast<double>(batch.global_samples));
  strategy_.set_control(kStop, stop_requested() ? 1 : 0);
  forward_backward(batch, number);
  if (options_.slow_factor > 1)
    std::this_thread::sleep_for(std::chrono::duration<double>((options_.slow_factor - 1) * seconds_between(start, Clock::now())));
  strategy_.finish_backward();
  m.learning_rate = learning_rate_at(config_, number, options_.total_steps);
  m.loss = strategy_.control_sum(kLoss);
  out.stop = strategy_.control_sum(kStop) > 0;
  if (!std::isfinite(m.loss))
    fail(ErrorCode::kFailed, "the loss is not finite (", m.loss, ") at step ", number + 1, "; use a smaller --lr (now ", m.learning_rate,
         "), --warmup-steps or --clip-norm", precision_ == Precision::kFp16 ? ", or --precision bf16, which has the range of fp32" : "",
         ". The weights of the last checkpoint are untouched");
  const StepOutcome outcome = strategy_.step({.learning_rate = m.learning_rate,
                                              .clip_norm = config_.clip_norm,
                                              .gradient_factor = scaler_.gradient_factor(),
                                              .check_finite = needs_loss_scale(precision_)});
  scaler_.update(outcome.skipped);
  const double seconds = seconds_between(start, Clock::now());
  if (config_.clip_norm > 0) m.gradient_norm = outcome.gradient_norm;
  m.step = number + 1;
  m.data_seconds = batch.waited_seconds;
  m.exchange_seconds = options_.num_ranks > 1 ? strategy_.statistics().exposed_seconds : 0;
  m.optimizer_seconds = outcome.update_seconds;
  m.compute_seconds = seconds - m.exchange_seconds - m.optimizer_seconds;
  m.step_seconds = m.data_seconds + seconds;
  m.samples_per_second = static_cast<double>(batch.global_samples) / m.step_seconds;
  return out;
}

Json TrainingStep::state() const { return scaler_.state(); }
void TrainingStep::load(const Json& state) { scaler_.load(state); }

}  // namespace cohort
