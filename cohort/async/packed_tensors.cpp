#include "cohort/async/packed_tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

void pack_into(std::byte* to, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor whole = tensor.contiguous();
    if (whole.nbytes() > 0) std::memcpy(to, whole.data_ptr(), whole.nbytes());
    to += whole.nbytes();
  }
}

void unpack_from(const std::byte* from, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.nbytes() == 0) continue;
    std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

}  // namespace

int64_t packed_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

at::Tensor packed(const std::vector<at::Tensor>& tensors) {
  at::Tensor out = at::empty({packed_bytes(tensors)}, at::kByte);
  pack_into(static_cast<std::byte*>(out.data_ptr()), tensors);
  return out;
}

std::string packed_text(const std::vector<at::Tensor>& tensors) {
  std::string out(static_cast<size_t>(packed_bytes(tensors)), 0);
  pack_into(reinterpret_cast<std::byte*>(out.data()), tensors);
  return out;
}

void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  if (bytes.numel() != packed_bytes(tensors)) fail(ErrorCode::kFailed, bytes.numel(), " bytes for tensors of ", packed_bytes(tensors));
  unpack_from(static_cast<const std::byte*>(bytes.data_ptr()), tensors);
}

void unpack(const std::string& bytes, const std::vector<at::Tensor>& tensors) {
  if (std::ssize(bytes) != packed_bytes(tensors))
    fail(ErrorCode::kBadInput, bytes.size(), " bytes came for tensors of ", packed_bytes(tensors));
  unpack_from(reinterpret_cast<const std::byte*>(bytes.data()), tensors);
}

}  // namespace cohort
