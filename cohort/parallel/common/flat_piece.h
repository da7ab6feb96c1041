#pragma once
// Consecutive elements of a tensor: what a checkpoint is made of, and tensors that share memory without being views.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

struct FlatPiece {
  std::string name;            ///< Of the whole tensor, e.g. "model/conv1.weight" or "optimizer/conv1.weight/momentum".
  at::Tensor values;           ///< 1-d, contiguous; aliases the memory in use, so that reading into it restores it.
  std::vector<int64_t> shape;  ///< Of the whole tensor; {} for a scalar.
  int64_t begin = 0;           ///< Index of the first element in the whole tensor, row-major.
};

/// The memory of contiguous `tensor` from element `offset` on, row-major with `sizes`, as a tensor of its own: unlike a view it may be
/// detached in place, which optimizers do with `.grad`.
at::Tensor alias_of(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes);

}  // namespace cohort
