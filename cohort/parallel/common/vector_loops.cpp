#include "cohort/parallel/common/vector_loops.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

constexpr int64_t kTile = 2048;  // Elements: 8 KiB of float.

/// Eight running sums, so that additions are independent.
template <typename T>
double squares(const T* values, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += static_cast<double>(values[i + lane]) * static_cast<double>(values[i + lane]);
  for (; i < count; ++i) sums[i % 8] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

void for_each_tile_sum(const std::vector<std::byte*>& arrays, int64_t count, at::ScalarType type,
                       const std::function<void(int64_t offset, int64_t count, const void* sum)>& use) {
  if (arrays.size() == 1) return use(0, count, arrays.front());
  alignas(64) double sum[kTile];
  const size_t element_bytes = c10::elementSize(type);
  std::vector<const std::byte*> at(arrays.begin(), arrays.end());
  for (int64_t offset = 0; offset < count; offset += kTile) {
    const int64_t length = std::min(kTile, count - offset);
    for (size_t i = 0; i < arrays.size(); ++i) at[i] = arrays[i] + static_cast<size_t>(offset) * element_bytes;
    std::byte* const result = reinterpret_cast<std::byte*>(sum);
    reduce_arrays(&result, 1, at.data(), at.size(), static_cast<size_t>(length), type, Reduction::kSum);
    use(offset, length, sum);
  }
}

namespace {

// GCC exports what has several versions and is not of this file alone.
COHORT_VECTOR_LOOP void add_in_loop(float* __restrict sum, const float* __restrict other, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += other[i];
}

}  // namespace

void add_to(float* sum, const float* other, int64_t count) { add_in_loop(sum, other, count); }

double squared_norm(const void* values, int64_t count, at::ScalarType type) {
  if (type == at::kDouble) return squares(static_cast<const double*>(values), count);
  if (type == at::kFloat) return squares(static_cast<const float*>(values), count);
  fail(ErrorCode::kBadInput, "no norm of gradients of type ", type);
}

}  // namespace cohort
