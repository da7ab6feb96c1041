#pragma once
// Consecutive elements of a tensor, the unit of checkpoints, and tensors that share memory without being views.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

struct FlatPiece {
  std::string name;            ///< Name of the whole tensor, e.g. "model/conv1.weight" or "optimizer/conv1.weight/momentum".
  at::Tensor values;           ///< 1-d, contiguous; aliases the memory in use, so that loading into it restores it.
  std::vector<int64_t> shape;  ///< Of the whole tensor; {} for a scalar.
  int64_t begin = 0;           ///< Index of the first element in the whole tensor, row-major.
};

/// A tensor over the memory of contiguous `tensor` from element `offset` on, row-major with `sizes`. Unlike a view it may be detached in
/// place, which optimizers do with `.grad`.
inline at::Tensor alias_of(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes) {
  at::Tensor out = at::empty({0}, tensor.options().requires_grad(false));
  std::vector<int64_t> strides(sizes.size(), 1);
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * std::max<int64_t>(1, sizes[d + 1]);
  out.set_(tensor.storage(), tensor.storage_offset() + offset, sizes, strides);
  return out;
}

/// All of a contiguous tensor as one piece.
inline FlatPiece whole_piece(std::string name, const at::Tensor& tensor) {
  return {std::move(name), alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0};
}

}  // namespace cohort
