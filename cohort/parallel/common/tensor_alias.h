#pragma once
// Tensors that share memory without being views.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cohort {

/// The memory of contiguous `tensor` from element `offset` on, row-major with `sizes`, as a tensor of its own: unlike a view it may be
/// detached in place, which optimizers do with `.grad`.
at::Tensor alias_of(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes);

}  // namespace cohort
