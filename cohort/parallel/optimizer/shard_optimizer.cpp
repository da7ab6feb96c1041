#include "cohort/parallel/optimizer/shard_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

// Updates with pruned weights: those found at zero, and those that `keep` selects. The rule's own update runs; pruned weights and their
// state (momentum, Adam's averages) are then reset to zero. So the weights themselves define what is pruned, in every checkpoint and on
// every rank, and no mask is kept between steps.
//
// Cost: the update in tiles that stay in the first-level cache, and a byte per weight.

/// `slots`: up to two arrays. `keep`: null, or a byte per weight, 0 for newly pruned ones. `update`(at, slots, length) updates elements
/// [at, at + length), whose state begins at `slots`.
template <typename T, typename Update>
void update_pruned(T* weights, T* const (&slots)[2], int64_t count, const uint8_t* keep, const Update& update) {
  constexpr int64_t kTile = 4096;
  std::array<uint8_t, kTile> kept;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    T* const w = weights + at;
    for (int64_t i = 0; i < length; ++i) kept[static_cast<size_t>(i)] = w[i] != 0;
    for (int64_t i = 0; i < length && keep; ++i) kept[static_cast<size_t>(i)] &= static_cast<uint8_t>(keep[at + i] != 0);
    T* slots_at[2] = {slots[0] ? slots[0] + at : nullptr, slots[1] ? slots[1] + at : nullptr};
    update(at, slots_at, length);
    for (T* const array : {w, slots_at[0], slots_at[1]})
      for (int64_t i = 0; i < length && array; ++i) array[i] = kept[static_cast<size_t>(i)] ? array[i] : T(0);
  }
}

const uint8_t* byte_at(const at::Tensor& keep, int64_t offset) {
  return keep.defined() ? keep.const_data_ptr<uint8_t>() + offset : nullptr;
}

}  // namespace

ShardOptimizer::ShardOptimizer(UpdateRule rule, std::vector<Segment> segments) : rule_(rule) {
  for (Segment& segment : segments) {
    const at::ScalarType type = segment.weights.scalar_type();
    if (type != at::kFloat && type != at::kDouble)
      fail(ErrorCode::kBadInput, "parameter ", segment.parameter, " cannot be trained: its type is ", type,
           name_settings("; keep parameters in Float (or Double) and use --precision bf16 or fp16 for half-precision arithmetic"));
    Held held;
    for (size_t slot = 0; slot < rule_.slots().size(); ++slot)
      held.slots.push_back(at::zeros({segment.weights.numel()}, segment.weights.options().requires_grad(false)));
    if (rule_.counts_updates()) held.step = at::zeros({1}, at::kFloat);
    held.segment = std::move(segment);
    segments_.push_back(std::move(held));
  }
}

void ShardOptimizer::update(size_t index, int64_t offset, int64_t count, const void* gradient, double learning_rate,
                            double gradient_factor) const {
  update_range(index, offset, count, {gradient}, learning_rate, gradient_factor);
}

void ShardOptimizer::update_by_sum(size_t index, const std::vector<std::byte*>& gradients, double learning_rate,
                                   double gradient_factor) const {
  update_range(index, 0, segments_[index].segment.weights.numel(), {gradients.begin(), gradients.end()}, learning_rate, gradient_factor);
}

/// Elements [offset, offset + count) with the sum of gradients that begin at the first of them.
void ShardOptimizer::update_range(size_t index, int64_t offset, int64_t count, const std::vector<const void*>& gradients,
                                  double learning_rate, double gradient_factor) const {
  const Held& held = segments_[index];
  const UpdateArguments arguments{learning_rate, gradient_factor, held.num_updates};
  const auto typed = [&]<typename T>(T) {
    T* slots[2] = {};
    for (size_t slot = 0; slot < held.slots.size(); ++slot) slots[slot] = held.slots[slot].data_ptr<T>() + offset;
    std::vector<const T*> arrays;
    for (const void* gradient : gradients) arrays.push_back(static_cast<const T*>(gradient));
    T* const weights = held.segment.weights.data_ptr<T>() + offset;
    if (!held.keeps_zeros)
      return cohort::update_by_sum(rule_, arguments, weights, arrays.data(), arrays.size(), slots, static_cast<size_t>(count));
    std::vector<const T*> arrays_at(arrays.size());
    update_pruned(weights, slots, count, byte_at(held.keep, offset), [&](int64_t at, T* const* slots_at, int64_t length) {
      for (size_t i = 0; i < arrays.size(); ++i) arrays_at[i] = arrays[i] + at;
      cohort::update_by_sum(rule_, arguments, weights + at, arrays_at.data(), arrays_at.size(), slots_at, static_cast<size_t>(length));
    });
  };
  if (held.segment.weights.scalar_type() == at::kDouble) typed(double{});
  else typed(float{});
}

void ShardOptimizer::update(size_t index, const at::Tensor& gradient, double learning_rate, double gradient_factor) {
  begin_update(index);
  const at::Tensor& weights = segments_[index].segment.weights;
  if (!weights.is_cpu()) return update_on_device(index, gradient, learning_rate, gradient_factor);
  const char* const data = static_cast<const char*>(gradient.data_ptr());
  constexpr int64_t kGrain = 1 << 15;  // Elements per thread, at least.
  at::parallel_for(0, weights.numel(), kGrain, [&](int64_t begin, int64_t end) {
    update(index, begin, end - begin, data + begin * weights.element_size(), learning_rate, gradient_factor);
  });
}

void ShardOptimizer::update_on_device(size_t index, const at::Tensor& gradient, double learning_rate, double gradient_factor) {
  const Held& held = segments_[index];
  if (!held.keeps_zeros) return apply_on_device(held, gradient, learning_rate, gradient_factor);
  at::Tensor pruned = held.segment.weights.eq(0);
  if (held.keep.defined()) pruned.logical_or_(held.keep.eq(0));
  apply_on_device(held, gradient, learning_rate, gradient_factor);
  at::Tensor weights = held.segment.weights;
  weights.masked_fill_(pruned, 0);
  for (at::Tensor slot : held.slots) slot.masked_fill_(pruned, 0);
}

void ShardOptimizer::apply_on_device(const Held& held, const at::Tensor& gradient, double learning_rate, double gradient_factor) const {
  at::Tensor flat = gradient.view({-1});
  if (gradient_factor != 1) flat = flat.mul(gradient_factor);
  const std::vector<at::Tensor> weights{held.segment.weights}, gradients{flat};
  if (!rule_.counts_updates()) {
    const bool has_momentum = !held.slots.empty();
    const std::vector<at::Tensor> momenta = has_momentum ? std::vector<at::Tensor>{held.slots[0]} : std::vector<at::Tensor>{};
    at::_fused_sgd_(weights, gradients, momenta, rule_.weight_decay, has_momentum ? rule_.momentum : 0.0, learning_rate, /*dampening=*/0.0,
                    rule_.kind == UpdateRule::Kind::kNesterov, /*maximize=*/false, /*is_first_step=*/false);
    return;
  }
  const std::vector<at::Tensor> averages{held.slots[0]}, squares{held.slots[1]};
  const std::vector<at::Tensor> steps{
      at::full({}, static_cast<double>(held.num_updates), held.segment.weights.options().dtype(at::kFloat))};
  const auto kernel = [&](auto function) {
    function(weights, gradients, averages, squares, at::TensorList{}, steps, learning_rate, rule_.beta1, rule_.beta2, rule_.weight_decay,
             rule_.eps, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (rule_.kind == UpdateRule::Kind::kAdamW) kernel([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else kernel([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

std::vector<FlatPiece> ShardOptimizer::state(bool saving) {
  std::vector<FlatPiece> pieces;
  const std::vector<std::string> names = rule_.slots();
  for (Held& held : segments_) {
    const std::string prefix = "optimizer/" + held.segment.parameter + "/";
    for (size_t slot = 0; slot < names.size(); ++slot)
      pieces.push_back({prefix + names[slot], held.slots[slot], held.segment.shape, held.segment.begin});
    if (held.step.defined() && !(saving && held.segment.begin > 0)) {
      held.step.fill_(static_cast<double>(held.num_updates));
      pieces.push_back({prefix + "step", held.step, {}, 0});
    }
  }
  return pieces;
}

void ShardOptimizer::load_counts() {
  for (Held& held : segments_)
    if (held.step.defined()) held.num_updates = std::llround(held.step.item<double>());
}

int64_t ShardOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Held& held : segments_)
    for (const at::Tensor& slot : held.slots) bytes += static_cast<int64_t>(slot.nbytes());
  return bytes;
}

}  // namespace cohort
