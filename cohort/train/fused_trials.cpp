// Fused trials (as HFTA, Wang et al. 2021, "Horizontally fused training array", has it): K trials of one architecture.
//
// Steps: (1) each trial's batch is gathered behind the others'; (2) a linear layer is one batched product {K, n, in} x {K, in, out}, a
// convolution one grouped convolution of {n, K c, h, w} with K groups, all else works on each element or channel anyhow; (3) the loss is
// the sum of the trials' means, so that one backward gives each trial its own gradient; (4) each trial's slice of each parameter is updated
// by its own learning rate, momentum and so on, unless it has ended. A NaN stays in its trial: no operation mixes trials.
// Trajectories equal unfused ones within rounding: batched products and grouped convolutions add in other orders.

#include "cohort/train/fused_trials.h"

#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include "cohort/base/error.h"
#include "cohort/parallel/parameters.h"

namespace cohort {
namespace {

const torch::nn::Conv2dImpl* fusible_convolution(const LayerGraph::Layer& layer) {
  const auto* const conv = dynamic_cast<const torch::nn::Conv2dImpl*>(layer.module.get());
  if (!conv || layer.kind != "conv2d" || conv->options.groups() != 1 ||
      !std::holds_alternative<torch::enumtype::kZeros>(conv->options.padding_mode()) ||
      !std::holds_alternative<torch::ExpandingArray<2>>(conv->options.padding()))
    return nullptr;
  return conv;
}

const torch::nn::LinearImpl* linear_of(const LayerGraph::Layer& layer) {
  return layer.kind == "linear" ? dynamic_cast<const torch::nn::LinearImpl*>(layer.module.get()) : nullptr;
}

bool works_by_channel(const LayerGraph::Layer& layer) { return !layer.module && (layer.kind == "relu" || layer.kind == "maxpool2d"); }

/// {n, K c, ...} -> {K, n, elements of c, ...}
at::Tensor trials_first(const at::Tensor& x, int64_t num_trials) { return x.reshape({x.size(0), num_trials, -1}).transpose(0, 1); }

}  // namespace

bool FusedTrials::can_fuse(const LayerGraph& model) {
  size_t num_parameters = 0;
  bool is_flat = false;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerGraph::Layer& layer = model.layers()[i];
    if (layer.inputs.size() != 1 || layer.inputs[0] != static_cast<int>(i) - 1) return false;
    if (layer.kind == "flatten" && !layer.module) is_flat = true;
    else if (is_flat ? linear_of(layer) != nullptr : fusible_convolution(layer) != nullptr)
      num_parameters += layer.module->parameters().size();
    else if (!works_by_channel(layer) || (is_flat && layer.kind != "relu")) return false;
  }
  const std::vector<NamedTensor> distinct = distinct_parameters(model);
  return is_flat && num_parameters == distinct.size() &&
         std::ranges::all_of(distinct, [](const NamedTensor& one) { return one.tensor.requires_grad(); });
}

FusedTrials::FusedTrials(const study::StudySpec& spec, const TrialData& data, const std::vector<study::TrialOrder>& orders)
    : data_(data), diverged_above_(spec.diverged_above) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  if (orders.empty()) fail(ErrorCode::kBadInput, "no trials to fuse");
  std::vector<std::vector<at::Tensor>> all;  // By parameter, then trial.
  for (const study::TrialOrder& order : orders) {
    const TrialSchedule schedule = trial_schedule(spec, order.parameters, order.train_steps);
    if (order.batch_size != orders[0].batch_size || (!trials_.empty() && schedule.label_smoothing != trials_[0].schedule.label_smoothing))
      fail(ErrorCode::kBadInput, "trials that are fused have one batch size and one label smoothing");
    trials_.push_back({.schedule = schedule, .sampler = Sampler(data.train.num_samples(), order.batch_size, order.seed)});
    const auto model = build_trial_model(spec, data.train.shape(), order.seed);
    if (!model_) model_ = model;
    if (!can_fuse(*model)) fail(ErrorCode::kBadInput, "model ", spec.model, ": its trials can not be fused");
    const std::vector<NamedTensor> parameters = distinct_parameters(*model);
    all.resize(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) all[i].push_back(parameters[i].tensor.detach());
  }
  for (const std::vector<at::Tensor>& parameter : all) {
    Parameter& stacked = parameters_.emplace_back();
    stacked.stacked = at::stack(parameter).set_requires_grad(true);
    for (size_t i = 0; i < trials_[0].schedule.rule.slots().size(); ++i) stacked.slots.push_back(at::zeros_like(stacked.stacked));
  }
}

at::Tensor FusedTrials::forward(at::Tensor x) const {
  const auto count = static_cast<int64_t>(trials_.size());
  auto next = parameters_.begin();
  bool is_flat = false;
  for (const LayerGraph::Layer& layer : model_->layers()) {
    if (const auto* const conv = fusible_convolution(layer)) {
      const at::Tensor weight = (next++)->stacked.flatten(0, 1);
      std::optional<at::Tensor> bias;
      if (conv->bias.defined()) bias = (next++)->stacked.flatten();
      const at::IntArrayRef padding = *std::get<torch::ExpandingArray<2>>(conv->options.padding());
      x = at::conv2d(x, weight, bias, *conv->options.stride(), padding, *conv->options.dilation(), count);
    } else if (const auto* const linear = linear_of(layer)) {
      const at::Tensor weight = (next++)->stacked.transpose(1, 2);
      x = linear->bias.defined() ? at::baddbmm((next++)->stacked.unsqueeze(1), x, weight) : at::bmm(x, weight);
    } else if (layer.kind == "flatten") {
      if (!is_flat) x = trials_first(x, count);
      is_flat = true;
    } else {
      x = layer.function({x});
    }
  }
  return x;
}

/// Input {n, K c, ...}, target {K n}.
void FusedTrials::gather(int64_t number) {
  std::vector<int64_t> indices;
  for (OneTrial& trial : trials_)
    for (const int64_t sample : trial.sampler.samples(number, {0, trial.sampler.batch_at(number)})) indices.push_back(sample);
  batch_.gather(data_.train, indices);
}

void FusedTrials::update(const Parameter& parameter, size_t trial) {
  const at::Tensor& weights = parameter.stacked;
  const at::Tensor gradient = weights.grad().contiguous();
  const int64_t count = weights.numel() / weights.size(0), offset = static_cast<int64_t>(trial) * count;
  std::array<float*, 2> slots{};
  for (size_t i = 0; i < parameter.slots.size(); ++i) slots[i] = parameter.slots[i].mutable_data_ptr<float>() + offset;
  const OneTrial& one = trials_[trial];
  cohort::update(one.schedule.rule, {.learning_rate = one.schedule.learning_rate_at(number_), .num_updates = one.steps + 1},
                 weights.mutable_data_ptr<float>() + offset, gradient.const_data_ptr<float>() + offset, slots.data(),
                 static_cast<size_t>(count));
}

void FusedTrials::step() {
  gather(number_);
  const auto count = static_cast<int64_t>(trials_.size());
  const int64_t batch = batch_.num_samples() / count;
  at::Tensor x = batch_.input();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), count);
  sizes[1] = batch;
  x = x.view(sizes);
  // {K, n, c, ...} -> {n, K c, ...}; a picture without channels has one.
  x = x.dim() > 3 ? x.transpose(0, 1).flatten(1, 2) : x.transpose(0, 1);
  const at::Tensor logits = forward(x);
  const at::Tensor each = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), batch_.target(), {}, at::Reduction::None, -100,
                                                 trials_[0].schedule.label_smoothing);
  const at::Tensor losses = each.view({count, batch}).mean(1);
  losses.sum().backward();
  const at::NoGradGuard no_grad;
  for (size_t trial = 0; trial < trials_.size(); ++trial) {
    OneTrial& one = trials_[trial];
    if (!one.alive) continue;
    one.loss = losses.const_data_ptr<float>()[trial];
    one.alive = std::isfinite(one.loss) && one.loss <= diverged_above_;
    if (!one.alive) continue;
    for (const Parameter& parameter : parameters_) update(parameter, trial);
    ++one.steps;
  }
  for (const Parameter& parameter : parameters_) parameter.stacked.mutable_grad().reset();
  ++number_;
}

std::vector<at::Tensor> FusedTrials::weights(size_t trial) const {
  std::vector<at::Tensor> weights;
  for (const Parameter& parameter : parameters_) weights.push_back(parameter.stacked.detach()[static_cast<int64_t>(trial)]);
  return weights;
}

}  // namespace cohort
