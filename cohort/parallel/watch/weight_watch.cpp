#include "cohort/parallel/watch/weight_watch.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

const void* storage_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) == storage_of(b) && a.storage_offset() == b.storage_offset() && a.is_contiguous();
}

uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

std::string kind_of(const at::Tensor& tensor) { return concat(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device().str()); }

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes();
}

}  // namespace

void WeightWatch::add(const NamedTensor& parameter, bool is_placed) {
  held_.push_back({parameter.name, parameter.tensor, parameter.tensor.variable_data(), is_placed, version_of(parameter.tensor),
                   storage_of(parameter.tensor)});
}

bool WeightWatch::is_replaced(size_t index) const {
  const Held& held = held_[index];
  return held.is_placed && !same_memory(held.parameter, held.place);
}

bool WeightWatch::any_replaced() const {
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_replaced(i)) return true;
  return false;
}

bool WeightWatch::is_written(size_t index) const {
  const Held& held = held_[index];
  return version_of(held.parameter) != held.version || (!held.is_placed && storage_of(held.parameter) != held.storage);
}

int64_t WeightWatch::first_written() const {
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_written(i) && !is_replaced(i)) return static_cast<int64_t>(i);
  return -1;
}

void WeightWatch::remember() {
  for (Held& held : held_) {
    held.version = version_of(held.parameter);
    held.storage = storage_of(held.parameter);
  }
}

void WeightWatch::check() const {
  std::vector<const Held*> replaced;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Held& held = held_[i];
    if (!same_kind(held.parameter, held.place))
      fail(ErrorCode::kBadInput, "parameter ", held.name, " is ", kind_of(held.parameter), " now and was ", kind_of(held.place), " when ",
           owner_, " took the model; convert a model (module->to(), set_data()) before it is wrapped");
    if (is_replaced(i) && held.parameter.numel() > 0) replaced.push_back(&held);
  }
  for (const Held* one : replaced)
    for (const Held& other : held_)
      if (&other != one && (storage_of(one->parameter) == storage_of(other.place) || same_memory(one->parameter, other.parameter)))
        fail(ErrorCode::kBadInput, "parameters ", other.name, " and ", one->name, " share memory since ", owner_,
             " took the model; tie weights before it is wrapped, by registering one tensor under both names");
}

at::Tensor WeightWatch::restore(size_t index) {
  const at::NoGradGuard no_grad;
  Held& held = held_[index];
  at::Tensor values = held.parameter.variable_data();
  if (storage_of(values) == storage_of(held.place)) values = values.clone();  // A transpose, say.
  held.parameter.set_data(held.place);
  held.version = version_of(held.parameter);  // torch::load() counts as a write in place, too.
  return values;
}

void WeightWatch::take_over() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < held_.size(); ++i)
    if (is_replaced(i)) place(i).copy_(restore(i));
}

int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  const auto* const data = static_cast<const char*>(values.const_data_ptr());
  const size_t num_bytes = values.nbytes();
  // FNV-1a over words, in four lanes that do not wait for each other.
  constexpr uint64_t kPrime = 0x100000001b3;
  std::array<uint64_t, 4> lanes{0xcbf29ce484222325, 1, 2, 3};
  const auto take = [&](size_t begin, size_t count) {
    std::array<uint64_t, 4> words{};
    std::memcpy(words.data(), data + begin, count);
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
      lanes[lane] ^= lanes[lane] >> 29;  // A product alone never moves a high bit down.
    }
  };
  size_t at = 0;
  for (; at + sizeof(lanes) <= num_bytes; at += sizeof(lanes)) take(at, sizeof(lanes));
  if (at < num_bytes) take(at, num_bytes - at);
  uint64_t sum = num_bytes;
  for (const uint64_t lane : lanes) sum = (sum ^ lane) * kPrime;
  return static_cast<int64_t>(sum | 1);
}

}  // namespace cohort
