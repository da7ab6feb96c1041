#include "cohort/trials/trial_weights.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

/// Elements of a cache line: a matrix that begins at one multiplies as fast, and to the same bits, as in memory of its own.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

using Pointers = std::array<float*, 2>;

Pointers pointers_at(const std::vector<at::Tensor>& slots, size_t num_slots, int64_t offset) {
  Pointers pointers{};
  for (size_t i = 0; i < num_slots; ++i) pointers[i] = slots[i].mutable_data_ptr<float>() + offset;
  return pointers;
}

}  // namespace

void TrialWeights::adopt(const LayerGraph& model, const UpdateRule& rule, double average_decay) {
  const at::NoGradGuard no_grad;
  rule_ = rule;
  average_decay_ = average_decay;
  segments_.clear();
  int64_t size = 0;
  for (const NamedTensor& parameter : distinct_parameters(model)) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad()) continue;
    if (tensor.scalar_type() != at::kFloat || !tensor.is_cpu() || tensor.is_sparse())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, ": trials train dense fp32 parameters on the CPU, this one is ",
           tensor.toString());
    segments_.push_back({parameter.name, tensor, size, tensor.numel()});
    size += aligned(tensor.numel());
  }
  if (segments_.empty()) fail(ErrorCode::kBadInput, "the model has no parameters to train");
  if (this->size() != size) weights_ = at::zeros({size}, at::kFloat);
  const size_t num_slots = rule.slots().size() + (average_decay > 0 ? 1 : 0);
  if (slots_.size() != num_slots || (num_slots > 0 && slots_[0].numel() != size)) {
    slots_.clear();
    for (size_t i = 0; i < num_slots; ++i) slots_.push_back(at::zeros({size}, at::kFloat));
  } else {
    for (const at::Tensor& slot : slots_) slot.zero_();
  }
  for (Segment& segment : segments_) {
    const at::Tensor view = weights_.narrow(0, segment.offset, segment.count).view(segment.parameter.sizes());
    view.copy_(segment.parameter);
    segment.parameter.set_data(view);
  }
  if (has_average()) slots_.back().copy_(weights_);
}

void TrialWeights::update(Segment& segment, double learning_rate, const float* gradient) {
  const Pointers slots = pointers_at(slots_, num_slots(), segment.offset);
  cohort::update(rule_, {.learning_rate = learning_rate, .num_updates = ++segment.num_updates},
                 weights_.mutable_data_ptr<float>() + segment.offset, gradient, slots.data(), static_cast<size_t>(segment.count));
}

void TrialWeights::update_all(double learning_rate, const float* gradient) {
  for (Segment& segment : segments_) ++segment.num_updates;
  const Pointers slots = pointers_at(slots_, num_slots(), 0);
  cohort::update(rule_, {.learning_rate = learning_rate, .num_updates = segments_.front().num_updates}, weights_.mutable_data_ptr<float>(),
                 gradient, slots.data(), static_cast<size_t>(size()));
}

void TrialWeights::update_average() {
  if (!has_average()) return;
  const float* const weights = weights_.const_data_ptr<float>();
  float* const average = slots_.back().mutable_data_ptr<float>();
  const auto part = static_cast<float>(1 - average_decay_);
  for (int64_t i = 0; i < size(); ++i) average[i] += part * (weights[i] - average[i]);
}

void TrialWeights::swap_average() {
  float* const weights = weights_.mutable_data_ptr<float>();
  std::swap_ranges(weights, weights + size(), slots_.back().mutable_data_ptr<float>());
}

}  // namespace cohort
