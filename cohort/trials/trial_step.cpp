// A step of a trial. It computes what `cohort train` computes for the same seed: batch s is the Sampler's, randomness is keyed by (seed,
// step, sample), the loss is the mean over the batch, micro-batches and ranks weigh by their samples.
//
// Gradients. Autograd's: each parameter's gradient is undefined before backward, so the engine moves its result there without adding or
// zeroing, and the update reads it where it is. (Preset views of one flat array cost a memset, an addition and a dispatch a parameter
// more.) A team copies them into one flat array and exchanges that once: num_weights x 4 bytes, one all-reduce a step. A chain of
// linear layers writes into the flat array itself (dense_chain.h).

#include "cohort/trials/trial_step.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/job/specs/small_specs.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/log.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

constexpr int64_t kLoss = 0, kStop = 1, kNumControls = 2;

/// Of a parameter after backward: dense and contiguous, or undefined.
const at::Tensor& tidy_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  if (gradient.defined() && !gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient;
}

}  // namespace

TrialStep::TrialStep(const TrialData& data, const Group& team, TrialStepOptions options) : data_(data), team_(team), options_(options) {
  use_compute_threads(1);
  if (data.train.has_bytes()) byte_batch_.emplace(data.train);
}

void TrialStep::begin(std::shared_ptr<LayerGraph> model, const TrialSchedule& schedule, int64_t batch_size, uint64_t seed) {
  chain_.reset();
  model_ = std::move(model);
  model_->train();
  schedule_ = schedule;
  schedule_.label_smoothing =
      label_smoothing_over_all(schedule.label_smoothing, schedule.label_smoothing_over, data_.train.shape().num_classes);
  seed_ = seed;
  weights_.adopt(*model_, schedule.rule, schedule.average_decay);
  buffers_.clear();
  for (NamedTensor& buffer : distinct_buffers(*model_))
    if (buffer.tensor.scalar_type() == at::kFloat && buffer.tensor.numel() > 0) buffers_.push_back(std::move(buffer));
  sampler_.emplace(data_.train.num_samples(), batch_size, seed, /*shuffle=*/true, Sampler::Batches::kRunOn);
  const int64_t batch = std::min(batch_size, data_.train.num_samples()), per_rank = (batch - 1) / team_.size() + 1;
  num_pieces_ = options_.max_microbatch > 0 ? (per_rank - 1) / options_.max_microbatch + 1 : 1;
  pieces_batch_ = -1;
  const std::vector<Share> shares =
      shares_of_batch(batch, std::vector<double>(static_cast<size_t>(team_.size()), 1), model_->sample_granularity());
  for (size_t rank = 0; rank < shares.size(); ++rank)
    if (shares[rank].size() == 0)
      fail(ErrorCode::kBadInput, "a batch of ", batch, " leaves rank ", rank, " of a team of ", team_.size(), " without samples",
           model_->sample_granularity() > 1 ? ": this model's batch norm keeps groups of samples together" : "", "; use a smaller team");
  make_chain();
}

void TrialStep::make_chain() {
  if (options_.use_dense_chain && chain_agrees_.value_or(true)) chain_ = DenseChain::make(*model_, data_.train.shape(), weights_);
  make_flat();
  if (!chain_ || chain_agrees_) return;
  chain_agrees_ = chain_agrees();
  if (!*chain_agrees_) chain_.reset();
}

void TrialStep::make_flat() {
  if (team_.size() == 1 && !chain_) return flat_.reset();
  int64_t size = weights_.size();
  if (team_.size() > 1) {
    size += kNumControls + std::ssize(weights_.segments());
    for (const NamedTensor& buffer : buffers_) size += buffer.tensor.numel();
  }
  if (!flat_.defined() || flat_.numel() != size) flat_ = team_.allocate(size, at::TensorOptions().dtype(at::kFloat));
}

/// A layer's kind is a name that anybody may give: before the first trial the chain must give autograd's loss and gradient for some
/// samples.
bool TrialStep::chain_agrees() {
  constexpr int64_t kSamples = 16;
  constexpr double kTolerance = 1e-3;
  std::vector<int64_t> indices(static_cast<size_t>(std::min(kSamples, data_.train.num_samples())));
  std::iota(indices.begin(), indices.end(), 0);
  batch_.gather(data_.train, indices);
  float* const flat = flat_.mutable_data_ptr<float>();
  const double loss = chain_->gradient(batch_.input(), batch_.target(), schedule_.label_smoothing, 1, false, flat);
  const double expected = autograd(1);
  double difference = 0, size = 0;
  for (const TrialWeights::Segment& segment : weights_.segments()) {
    const at::Tensor gradient = tidy_gradient(segment.parameter);
    segment.parameter.mutable_grad().reset();
    if (!gradient.defined()) return false;
    const float* const g = gradient.const_data_ptr<float>();
    for (int64_t i = 0; i < segment.count; ++i) {
      difference = std::max(difference, std::abs(static_cast<double>(g[i]) - static_cast<double>(flat[segment.offset + i])));
      size = std::max(size, std::abs(static_cast<double>(g[i])));
    }
  }
  const bool agrees = std::abs(loss - expected) <= kTolerance * std::abs(expected) && difference <= kTolerance * size;
  if (!agrees) log_info("a layer of the model is not what its kind says; trials run by autograd");
  return agrees;
}

const std::vector<Share>& TrialStep::pieces_of(int64_t batch) {
  if (batch == pieces_batch_) return pieces_;
  pieces_batch_ = batch;
  return pieces_ = pieces_of_rank(batch, team_.rank(), std::vector<double>(static_cast<size_t>(team_.size()), 1),
                                  static_cast<int>(num_pieces_), model_->sample_granularity());
}

/// Of the samples in batch_, weighted; the engine adds to gradients that are there.
double TrialStep::autograd(double weight) {
  const at::Tensor output = model_->forward(batch_.input());
  at::Tensor loss = mean_loss(*model_, output, batch_.target(), schedule_.label_smoothing);
  check_has_gradient(*model_, output, loss);
  if (weight != 1) loss = loss * weight;
  const double value = loss.item<double>();
  loss.backward();
  return value;
}

double TrialStep::gradient_of(const Share& piece, int64_t number, int64_t batch, bool accumulate) {
  const auto samples = sampler_->samples(number, piece);
  const double weight = static_cast<double>(piece.size()) / static_cast<double>(batch);
  if (chain_ && byte_batch_ && ByteProduct::pays_to_train(piece.size())) {
    byte_batch_->gather(samples);
    return chain_->gradient(byte_batch_->rows(), byte_batch_->target(), schedule_.label_smoothing, weight, accumulate,
                            flat_.mutable_data_ptr<float>());
  }
  batch_.gather(data_.train, samples);
  if (chain_)
    return chain_->gradient(batch_.input(), batch_.target(), schedule_.label_smoothing, weight, accumulate,
                            flat_.mutable_data_ptr<float>());
  const StepContextScope context({seed_, number, piece.begin});
  return autograd(weight);
}

/// Autograd's gradients into the flat array, with a mark for each that is there.
void TrialStep::collect_gradients() {
  float* const flat = flat_.mutable_data_ptr<float>();
  float* mark = flat + weights_.size() + kNumControls;
  for (const TrialWeights::Segment& segment : weights_.segments()) {
    const at::Tensor& gradient = tidy_gradient(segment.parameter);
    *mark++ = gradient.defined() ? 1.0F : 0.0F;
    const size_t bytes = static_cast<size_t>(segment.count) * sizeof(float);
    if (gradient.defined()) std::memcpy(flat + segment.offset, gradient.const_data_ptr<float>(), bytes);
    else std::memset(flat + segment.offset, 0, bytes);
    segment.parameter.mutable_grad().reset();
  }
}

TrialStep::Result TrialStep::exchange(double loss, bool wish_stop, double share) {
  const at::NoGradGuard no_grad;
  if (!chain_) collect_gradients();
  float* const control = flat_.mutable_data_ptr<float>() + weights_.size();
  control[kLoss] = static_cast<float>(loss);
  control[kStop] = wish_stop ? 1.0F : 0.0F;
  if (chain_) {
    if (share == 0) std::fill_n(flat_.mutable_data_ptr<float>(), weights_.size(), 0.0F);
    std::fill_n(control + kNumControls, weights_.segments().size(), 1.0F);
  }
  int64_t offset = weights_.size() + kNumControls + std::ssize(weights_.segments());
  const auto place_of = [&](const NamedTensor& buffer) {
    const at::Tensor place = flat_.narrow(0, offset, buffer.tensor.numel()).view(buffer.tensor.sizes());
    offset += buffer.tensor.numel();
    return place;
  };
  for (const NamedTensor& buffer : buffers_) place_of(buffer).copy_(buffer.tensor).mul_(share);
  team_.all_reduce_sum(flat_, "the gradients of a trial");
  offset = weights_.size() + kNumControls + std::ssize(weights_.segments());
  for (const NamedTensor& buffer : buffers_) buffer.tensor.copy_(place_of(buffer));
  return {control[kLoss], control[kStop] > 0};
}

TrialStep::Result TrialStep::compute(int64_t number, bool wish_stop) {
  // A user's model may draw from LibTorch's generator; this makes it a function of (seed, step, rank), as `cohort train` has it.
  if (!chain_) torch::manual_seed(random_bits(seed_, number, team_.rank()));
  const int64_t batch = sampler_->batch_at(number);
  double loss = 0;
  int64_t num_samples = 0;
  for (const Share& piece : pieces_of(batch)) {
    if (piece.size() == 0) continue;
    loss += gradient_of(piece, number, batch, num_samples > 0);
    num_samples += piece.size();
  }
  if (team_.size() == 1) return {loss, wish_stop};
  return exchange(loss, wish_stop, static_cast<double>(num_samples) / static_cast<double>(batch));
}

void TrialStep::update(int64_t number) {
  const at::NoGradGuard no_grad;
  const double learning_rate = schedule_.learning_rate.at(number, 0);
  if (chain_) {
    weights_.update_all(learning_rate, flat_.const_data_ptr<float>());
    return weights_.update_average();
  }
  const float* const flat = team_.size() > 1 ? flat_.const_data_ptr<float>() : nullptr;
  const float* mark = flat ? flat + weights_.size() + kNumControls : nullptr;
  for (TrialWeights::Segment& segment : weights_.segments()) {
    // A parameter that no rank has used keeps its value, as in torch::optim.
    if (flat) {
      if (*mark++ > 0) weights_.update(segment, learning_rate, flat + segment.offset);
    } else if (const at::Tensor& gradient = tidy_gradient(segment.parameter); gradient.defined()) {
      weights_.update(segment, learning_rate, gradient.const_data_ptr<float>());
      segment.parameter.mutable_grad().reset();
    }
  }
  weights_.update_average();
}

}  // namespace cohort
