#include "cohort/trials/trial_step.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/job/specs/small_specs.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
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
#include "cohort/job/learning_rate.h"
#include "cohort/job/update_rule.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/metric/metrics.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

/// A trial's parameter or its default, inside of what it may be.
class Reader {
 public:
  explicit Reader(const study::Parameters& parameters) : parameters_(parameters) {}

  double number(const char* name, double fallback, double minimum, double maximum, bool open_end = false) const {
    const auto found = parameters_.find(name);
    const double value = found == parameters_.end() ? fallback : found->second;
    if (!(value >= minimum) || value > maximum || (open_end && value == maximum))
      fail(ErrorCode::kBadInput, "trial parameter ", name, ": expected ", minimum, " to ", open_end ? "below " : "", maximum, ", found ",
           value);
    return value;
  }
  int64_t steps(const char* name) const { return std::llround(number(name, 0, 0, kMostSteps)); }

 private:
  static constexpr double kMostSteps = 1e15;
  const study::Parameters& parameters_;
};

}  // namespace

TrialSchedule trial_schedule(const study::StudySpec& spec, const study::Parameters& parameters, int64_t train_steps) {
  constexpr double kLargest = 1e30;
  const Reader read(parameters);
  TrialSchedule trial;
  UpdateRule& rule = trial.rule;
  rule.kind = optimizer_kind(spec.optimizer);
  rule.momentum = read.number("momentum", rule.momentum, 0, 1, true);
  rule.beta1 = read.number("beta1", rule.beta1, 0, 1, true);
  rule.beta2 = read.number("beta2", rule.beta2, 0, 1, true);
  rule.eps = read.number("epsilon", rule.eps, 0, kLargest);
  rule.weight_decay = read.number("weight_decay", spec.weight_decay, 0, kLargest);
  trial.label_smoothing = read.number("label_smoothing", 0, 0, 1);
  trial.label_smoothing_over = spec.label_smoothing_over;
  trial.average_decay = read.number("average_decay", 0, 0, 1, true);
  LearningRate& rate = trial.learning_rate;
  rate.rate = read.number("learning_rate", 0, 0, kLargest);
  if (rate.rate == 0) fail(ErrorCode::kBadInput, "trial parameter learning_rate: expected a positive number, found none");
  rate.end_factor = read.number("end_factor", 0, 0, kLargest);
  rate.warmup_steps = read.steps("warmup_steps");
  rate.decay_steps = read.steps("decay_steps");
  const double fraction = read.number("decay_fraction", 0, 0, kLargest);
  if (rate.decay_steps == 0 && fraction > 0)
    rate.decay_steps = std::max<int64_t>(1, std::llround(fraction * static_cast<double>(train_steps)));
  if (rate.decay_steps > 0) rate.schedule = LearningRate::Schedule::kLinear;
  return trial;
}

// A step of a trial. It computes what `cohort train` computes for the same seed: batch s is the Sampler's, randomness is keyed by (seed,
// step, sample), the loss is the mean over the batch, micro-batches and ranks weigh by their samples.
//
// Gradients. Autograd's: each parameter's gradient is undefined before backward, so the engine moves its result there without adding or
// zeroing, and the update reads it where it is. (Preset views of one flat array cost a memset, an addition and a dispatch a parameter
// more.) A team copies them into one flat array and exchanges that once: num_weights x 4 bytes, one all-reduce a step. A chain of
// linear layers writes into the flat array itself (dense_chain.h).

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
  const at::Tensor loss = loss_of(*model_, output, batch_.target(), weight, {.label_smoothing = schedule_.label_smoothing});
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

namespace {

/// Samples computed at once. By the chain: large enough for the matrix product, small enough that activations stay in the cache. By the
/// graph: as train's evaluation has it, activations of convolutions are large.
constexpr int64_t kChainChunk = 500, kGraphChunk = 250;

/// Classes that are likelier than the target: above it, or as high and before it. NaN is likelier than all.
COHORT_VECTOR_LOOP int64_t num_likelier(const float* logits, int64_t target, int64_t num_classes) {
  const float of_target = logits[target];
  int32_t count = 0;  // As wide as the floats: a vector of them counts at once.
  for (int64_t j = 0; j < target; ++j) count += !(logits[j] < of_target);
  for (int64_t j = target + 1; j < num_classes; ++j) count += !(logits[j] <= of_target);
  return count;
}

LossSums evaluate_graph(LayerGraph& model, const TrialBatch& batch) {
  const at::Tensor output = model.forward(batch.input());
  const at::Tensor logits = output.reshape({-1, output.size(-1)}), target = batch.target().reshape({-1});
  return {at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).item<double>(),
          static_cast<double>(count_wrong_targets(logits, target))};
}

LossSums evaluate_labels(LayerGraph& model, const TrialBatch& batch, int64_t first, LabelScores& scores) {
  const at::Tensor output = model.forward(batch.input()), target = batch.target();
  const double loss = mean_loss(model, output, target).item<double>();
  scores.add(first, output, target);
  return {loss * static_cast<double>(target.numel()), output.gt(0).reshape_as(target).ne(target.gt(0)).sum().item<double>()};
}

}  // namespace

int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor rows = logits.contiguous(), labels = target.contiguous();
  const int64_t num_classes = rows.size(1);
  const float* row = rows.const_data_ptr<float>();
  const int64_t* const label = labels.const_data_ptr<int64_t>();
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < rows.size(0); ++i, row += num_classes)
    num_wrong += label[i] < 0 || label[i] >= num_classes || num_likelier(row, label[i], num_classes) > 0;
  return num_wrong;
}

TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team) {
  const at::NoGradGuard no_grad;
  const int64_t chunk = chain ? kChainChunk : kGraphChunk, num_chunks = (num_samples - 1) / chunk + 1;
  // Loss and wrong targets of each chunk; zero where another rank counts it.
  const at::Tensor sums = at::zeros({2 * num_chunks}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  TrialBatch batch;
  const DataShape& shape = samples.shape();
  LabelScores scores(num_samples, shape.num_classes);
  const ByteRows* const bytes = chain ? samples.bytes() : nullptr;
  if (bytes) chain->read_weight_for(*bytes);
  if (!chain) model.eval();
  for (int64_t i = team.rank(); i < num_chunks; i += team.size()) {
    const int64_t begin = i * chunk, end = std::min(num_samples, begin + chunk);
    batch.view(samples, begin, end);
    const LossSums of_chunk = bytes          ? chain->evaluate(*bytes, begin, end, batch.target())
                              : chain        ? chain->evaluate(batch.input(), batch.target())
                              : shape.labels ? evaluate_labels(model, batch, begin, scores)
                                             : evaluate_graph(model, batch);
    sum[2 * i] = of_chunk.loss;
    sum[2 * i + 1] = of_chunk.num_wrong;
  }
  if (!chain) model.train();
  if (team.size() > 1) team.all_reduce_sum(sums, "the sums of an evaluation");
  double loss = 0, num_wrong = 0;
  for (int64_t i = 0; i < num_chunks; ++i) {
    loss += sum[2 * i];
    num_wrong += sum[2 * i + 1];
  }
  const auto num_targets = static_cast<double>(num_samples * shape.targets_per_sample());
  TrialEvaluation evaluation{loss / num_targets, num_wrong / num_targets};
  if (shape.labels) evaluation.precision = scores.mean_average_precision(team);
  return evaluation;
}

}  // namespace cohort
