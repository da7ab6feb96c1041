#include "cohort/parallel/common/flat_piece.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace cohort {

at::Tensor alias_of(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes) {
  at::Tensor out = at::empty({0}, tensor.options().requires_grad(false));
  std::vector<int64_t> strides(sizes.size(), 1);
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * std::max<int64_t>(1, sizes[d + 1]);
  out.set_(tensor.storage(), tensor.storage_offset() + offset, sizes, strides);
  return out;
}

}  // namespace cohort
