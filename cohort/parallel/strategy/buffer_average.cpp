#include "cohort/parallel/strategy/buffer_average.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {
namespace {

constexpr int64_t kSmallBuffer = 4096, kSamples = 64;  // Elements. Each sample of a large buffer costs a cache line.

at::Tensor sampled(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().view({-1});
  return flat.numel() <= kSmallBuffer ? flat : flat.slice(0, 0, flat.numel(), flat.numel() / kSamples);
}

/// Compares bits, so that a NaN equals itself.
bool same_bits(const at::Tensor& values, const at::Tensor& kept) {
  const auto bytes = static_cast<size_t>(values.element_size()),
             stride = bytes * static_cast<size_t>(values.numel() > 0 ? values.stride(0) : 1);
  const auto* a = static_cast<const char*>(values.const_data_ptr());
  const auto* b = static_cast<const char*>(kept.const_data_ptr());
  if (stride == bytes) return std::memcmp(a, b, values.nbytes()) == 0;
  for (int64_t i = 0; i < values.numel(); ++i, a += stride, b += bytes)
    if (std::memcmp(a, b, bytes) != 0) return false;
  return true;
}

at::Tensor weighted(const at::Tensor& values, at::ScalarType type, double share) {
  const at::Tensor flat = values.detach().reshape({-1}).to(type);
  return share == 0 ? at::zeros_like(flat) : flat.mul(share);
}

}  // namespace

at::ScalarType BufferAverage::Buffer::exchanged_type() const {
  if (!named.tensor.is_floating_point()) return at::kLong;
  return named.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

BufferAverage::BufferAverage(const torch::nn::Module& module, Group group, BufferPolicy policy)
    : group_(std::move(group)), policy_(policy) {
  if (policy == BufferPolicy::kNone || group_.size() == 1) return;
  for (NamedTensor& named : distinct_buffers(module)) {
    if (named.tensor.numel() == 0 || named.tensor.is_complex()) continue;
    Buffer buffer;
    buffer.named = std::move(named);
    remember(buffer);
    buffers_.push_back(std::move(buffer));
  }
}

void BufferAverage::remember(Buffer& buffer) {
  const at::Tensor& tensor = buffer.named.tensor;
  buffer.version = version_of(tensor);
  if (tensor.is_cpu() && tensor.is_contiguous()) buffer.sample = sampled(tensor).clone(at::MemoryFormat::Contiguous);
}

bool BufferAverage::is_changed(const Buffer& buffer) const {
  const at::Tensor& tensor = buffer.named.tensor;
  if (version_of(tensor) != buffer.version) return true;
  if (!buffer.sample.defined() || !tensor.is_contiguous()) return tensor.is_floating_point();
  return tensor.scalar_type() != buffer.sample.scalar_type() || !same_bits(sampled(tensor), buffer.sample);
}

void BufferAverage::average(double share) {
  exchanged_bytes_ = 0;
  if (buffers_.empty()) return;
  at::NoGradGuard no_grad;
  if (policy_ == BufferPolicy::kBroadcast) share = group_.rank() == 0 ? 1 : 0;
  std::vector<float> flags;
  for (Buffer& buffer : buffers_) {
    flags.push_back(is_changed(buffer) ? 1 : 0);
    buffer.has_come = false;
  }
  const std::vector<float> changed = exchange(flags, share);
  bool is_late = false;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].is_due = changed[i] > 0 && !buffers_[i].has_come && buffers_[i].exchanged_type() != at::kLong;
    is_late |= buffers_[i].is_due;
  }
  if (is_late) exchange({}, share);
  exchange_counters(changed);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].is_due = changed[i] > 0 && buffers_[i].exchanged_type() != at::kLong;
    if (changed[i] > 0) remember(buffers_[i]);
  }
}

/// Returns the sums of the flags; due buffers that changed on any rank get their averages.
std::vector<float> BufferAverage::exchange(const std::vector<float>& flags, double share) {
  std::vector<float> sums(flags.size());
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> pieces;
    if (type == at::kFloat && !flags.empty()) pieces.push_back(at::tensor(flags, at::kFloat));
    for (const Buffer& buffer : buffers_)
      if (buffer.is_due && buffer.exchanged_type() == type) pieces.push_back(weighted(buffer.named.tensor, type, share));
    if (pieces.empty()) continue;
    for (at::Tensor& piece : pieces) piece = piece.to(pieces.back().device());
    const at::Tensor flat = group_.exchangeable(at::cat(pieces));
    exchanged_bytes_ += static_cast<int64_t>(flat.nbytes());
    group_.all_reduce_sum(flat, "the buffers");
    int64_t offset = 0;
    if (type == at::kFloat && !flags.empty()) {
      const at::Tensor here = flat.narrow(0, 0, static_cast<int64_t>(flags.size())).cpu();
      std::copy_n(here.const_data_ptr<float>(), flags.size(), sums.begin());
      offset = here.numel();
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      if (!buffer.is_due || buffer.exchanged_type() != type) continue;
      const at::Tensor& tensor = buffer.named.tensor;
      if (flags.empty() || sums[i] > 0) tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      buffer.has_come = true;
      offset += tensor.numel();
    }
  }
  return sums;
}

/// Exchanges counters that only some ranks incremented, for instance because one had no samples.
void BufferAverage::exchange_counters(const std::vector<float>& changed) {
  std::vector<at::Tensor> pieces;
  std::vector<const Buffer*> moved;
  const auto all = static_cast<float>(group_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& buffer = buffers_[i];
    if (buffer.exchanged_type() != at::kLong || changed[i] == 0) continue;
    if (changed[i] == all && policy_ == BufferPolicy::kAverage) continue;
    pieces.push_back(buffer.named.tensor.detach().reshape({-1}).to(at::kCPU, at::kLong));
    moved.push_back(&buffer);
  }
  if (pieces.empty()) return;
  const at::Tensor flat = at::cat(pieces);
  exchanged_bytes_ += static_cast<int64_t>(flat.nbytes());
  if (policy_ == BufferPolicy::kBroadcast) group_.broadcast(flat, 0, "the buffers of whole numbers");
  else group_.all_reduce(flat, Reduction::kMax, "the buffers of whole numbers");
  int64_t offset = 0;
  for (const Buffer* buffer : moved) {
    const at::Tensor& tensor = buffer->named.tensor;
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace cohort
