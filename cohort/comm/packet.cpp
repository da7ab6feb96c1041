#include "cohort/comm/packet.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int64_t kUndefined = -1;
constexpr int64_t kMostDimensions = 64;

size_t align(size_t bytes) { return (bytes + kPacketAlignment - 1) / kPacketAlignment * kPacketAlignment; }

/// Offset of the first tensor's data.
size_t header_bytes(const std::vector<at::Tensor>& tensors) {
  size_t words = 1;
  for (const at::Tensor& tensor : tensors) words += tensor.defined() ? 3 + static_cast<size_t>(tensor.dim()) : 1;
  return align(words * sizeof(int64_t));
}

void copy_dense(const at::Tensor& tensor, std::byte* to) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor()) {
    std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    return;
  }
  const c10::AutoGradMode no_gradients(false);
  at::from_blob(to, tensor.sizes(), at::TensorOptions(tensor.scalar_type())).copy_(tensor);
}

/// Reads words, checked against the packet's length.
class Reader {
 public:
  Reader(std::byte* packet, size_t bytes) : packet_(packet), bytes_(bytes) {}

  int64_t word() {
    check(bytes_ - at_ >= sizeof(int64_t));
    int64_t value;
    std::memcpy(&value, packet_ + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  int64_t word_up_to(int64_t most) {
    const int64_t value = word();
    check(value >= 0 && value <= most);
    return value;
  }
  std::byte* data(int64_t offset, int64_t num_elements, size_t element_bytes) {
    check(static_cast<size_t>(offset) <= bytes_ &&
          static_cast<size_t>(num_elements) <= (bytes_ - static_cast<size_t>(offset)) / element_bytes);
    return packet_ + offset;
  }
  void check(bool right) const {
    if (!right)
      fail(ErrorCode::kFailed, bytes_, " bytes received as a packet of tensors are not one: another rank runs a different version");
  }

 private:
  std::byte* packet_;
  size_t bytes_, at_ = 0;
};

at::Tensor read_tensor(Reader& reader, const std::shared_ptr<void>& owner) {
  const int64_t type = reader.word();
  if (type == kUndefined) return {};
  reader.check(type >= 0 && type < static_cast<int64_t>(at::ScalarType::Undefined));
  const auto options = at::TensorOptions(static_cast<at::ScalarType>(type));
  std::vector<int64_t> sizes(static_cast<size_t>(reader.word_up_to(kMostDimensions)));
  int64_t num_elements = 1;
  bool overflows = false;
  for (int64_t& size : sizes) {
    size = reader.word_up_to(INT64_MAX);
    overflows |= __builtin_mul_overflow(num_elements, size, &num_elements);
  }
  const int64_t offset = reader.word_up_to(INT64_MAX);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return at::empty(sizes, options);
  reader.check(!overflows);
  return at::from_blob(reader.data(offset, num_elements, options.dtype().itemsize()), sizes, [owner](void*) {}, options);
}

}  // namespace

size_t packed_bytes(const std::vector<at::Tensor>& tensors, const std::string& what) {
  size_t bytes = header_bytes(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined()) continue;
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.dim() > kMostDimensions)
      fail(ErrorCode::kBadInput, "hand-over of ", what, ": tensor ", i, " (", tensor.toString(), ") is not dense CPU memory");
    bytes += align(tensor.nbytes());
  }
  return bytes;
}

void pack(const std::vector<at::Tensor>& tensors, std::byte* packet) {
  size_t data_at = header_bytes(tensors), word_at = 0;
  const auto put = [&](int64_t word) {
    std::memcpy(packet + word_at, &word, sizeof word);
    word_at += sizeof word;
  };
  put(std::ssize(tensors));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      put(kUndefined);
      continue;
    }
    put(static_cast<int64_t>(tensor.scalar_type()));
    put(tensor.dim());
    for (const int64_t size : tensor.sizes()) put(size);
    put(static_cast<int64_t>(data_at));
    if (tensor.numel() == 0) continue;
    copy_dense(tensor, packet + data_at);
    data_at += align(tensor.nbytes());
  }
}

std::vector<at::Tensor> unpack(std::byte* packet, size_t bytes, const std::shared_ptr<void>& owner) {
  Reader reader(packet, bytes);
  std::vector<at::Tensor> tensors(static_cast<size_t>(reader.word_up_to(static_cast<int64_t>(bytes / sizeof(int64_t)))));
  for (at::Tensor& tensor : tensors) tensor = read_tensor(reader, owner);
  return tensors;
}

}  // namespace cohort
