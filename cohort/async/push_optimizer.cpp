#include "cohort/async/push_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "cohort/async/async_mode.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {
namespace {

/// The update rule for a push of weight a, and what its mean gradient is multiplied by.
struct PushRule {
  UpdateRule rule;
  double gradient_factor = 1;
};

PushRule push_rule(const UpdateRule& rule, double weight) {
  PushRule push{rule};
  const auto scaled = [&](double decay) { return std::pow(decay, weight); };
  if (rule.kind == UpdateRule::Kind::kMomentum || rule.kind == UpdateRule::Kind::kNesterov) {
    push.rule.momentum = scaled(rule.momentum);
    push.gradient_factor = (1 - push.rule.momentum) / (1 - rule.momentum);
    push.rule.weight_decay = rule.weight_decay * push.gradient_factor;
  } else if (rule.counts_updates()) {
    push.rule.beta1 = scaled(rule.beta1);
    push.rule.beta2 = scaled(rule.beta2);
  }
  return push;
}

template <typename T>
void update_parameter(const PushRule& push, const UpdateArguments& arguments, const at::Tensor& weights, const at::Tensor& gradient,
                      const std::vector<at::Tensor>& slots) {
  constexpr int64_t kGrain = 1 << 15;  // Elements per thread.
  T* const values = weights.data_ptr<T>();
  const T* const from = gradient.data_ptr<T>();
  at::parallel_for(0, weights.numel(), kGrain, [&](int64_t begin, int64_t end) {
    T* arrays[2] = {};
    for (size_t slot = 0; slot < slots.size(); ++slot) arrays[slot] = slots[slot].data_ptr<T>() + begin;
    update(push.rule, arguments, values + begin, from + begin, arrays, static_cast<size_t>(end - begin));
  });
}

double sum_of_squares(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const at::Tensor whole = gradient.contiguous();
    squares += squared_norm(whole.data_ptr(), whole.numel(), whole.scalar_type());
  }
  return squares;
}

}  // namespace

PushOptimizer::PushOptimizer(const UpdateRule& rule, const std::vector<NamedTensor>& trained) : rule_(rule), steps_(trained.size(), 0.0) {
  for (const auto& [name, tensor] : trained) {
    if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble)
      fail(ErrorCode::kBadInput, "parameter ", name, " cannot be trained: its type is ", tensor.scalar_type(),
           "; keep parameters in Float or Double");
    std::vector<at::Tensor>& slots = slots_.emplace_back();
    for (size_t slot = 0; slot < rule.slots().size(); ++slot)
      slots.push_back(at::zeros({tensor.numel()}, tensor.options().requires_grad(false)));
    if (rule.counts_updates()) saved_steps_.push_back(at::zeros({1}, at::kFloat));
  }
}

double PushOptimizer::apply(const PushNumbers& numbers, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  double factor = 1 / numbers.weight;  // Gradients are the mean times the weight.
  StepOutcome judged;
  if (numbers.clip_norm > 0) judged = judge_gradient(sum_of_squares(gradients), {.clip_norm = numbers.clip_norm}, &factor);
  const PushRule push = push_rule(rule_, numbers.weight);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!gradients[i].defined()) continue;
    steps_[i] += numbers.weight;
    const UpdateArguments arguments{.learning_rate = numbers.learning_rate * numbers.weight,
                                    .gradient_factor = factor * push.gradient_factor,
                                    .num_updates = std::max<int64_t>(1, std::llround(steps_[i] / numbers.weight))};
    if (weights[i].scalar_type() == at::kDouble) update_parameter<double>(push, arguments, weights[i], gradients[i], slots_[i]);
    else update_parameter<float>(push, arguments, weights[i], gradients[i], slots_[i]);
  }
  return judged.gradient_norm;
}

double PushOptimizer::local_step(const ModelTensors& model, const WorkItem& item, const WorkResult& result, const StepNumbers& numbers) {
  const at::NoGradGuard no_grad;
  const double weight = item.weight();
  for (const at::Tensor& gradient : result.gradients)
    if (gradient.defined() && weight != 1) gradient.mul_(1 / weight);
  return apply({.weight = 1, .learning_rate = numbers.learning_rate, .clip_norm = numbers.clip_norm}, model.weights, result.gradients);
}

PushOptimizer PushOptimizer::copy() const {
  PushOptimizer out(*this);
  for (std::vector<at::Tensor>& slots : out.slots_) slots = copies(slots);
  out.saved_steps_ = copies(saved_steps_);
  return out;
}

std::vector<at::Tensor> PushOptimizer::arrays() const {
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& slots : slots_) all.insert(all.end(), slots.begin(), slots.end());
  return all;
}

std::vector<FlatPiece> PushOptimizer::pieces(const std::vector<NamedTensor>& trained) {
  std::vector<FlatPiece> pieces;
  const std::vector<std::string> names = rule_.slots();
  for (size_t i = 0; i < trained.size(); ++i) {
    const std::string prefix = "optimizer/" + trained[i].name + "/";
    for (size_t slot = 0; slot < names.size(); ++slot)
      pieces.push_back({prefix + names[slot], slots_[i][slot], trained[i].tensor.sizes().vec(), 0});
    if (saved_steps_.empty()) continue;
    saved_steps_[i].fill_(steps_[i]);
    pieces.push_back({prefix + "step", saved_steps_[i], {}, 0});
  }
  return pieces;
}

void PushOptimizer::load_counts() {
  for (size_t i = 0; i < saved_steps_.size(); ++i) steps_[i] = saved_steps_[i].item<double>();
}

}  // namespace cohort
