#include "cohort/comm/sum_in_place.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "cohort/base/error.h"

// One copy for each instruction set; the machine picks at load.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define COHORT_VECTORISED
#endif

namespace cohort {
namespace {

constexpr size_t kTile = 2048;  // Elements: the partial sums of a tile stay in the first-level cache.

COHORT_VECTORISED void add_floats(float* sum, const float* other, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += other[i];
}
COHORT_VECTORISED void add_doubles(double* sum, const double* other, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += other[i];
}
template <typename T>
void add(T* sum, const T* other, size_t count) {
  if constexpr (std::is_same_v<T, float>) return add_floats(sum, other, count);
  if constexpr (std::is_same_v<T, double>) return add_doubles(sum, other, count);
  for (size_t i = 0; i < count; ++i) sum[i] = static_cast<T>(sum[i] + other[i]);
}

template <typename T>
void sum_tile(T* sum, const std::byte* const* arrays, size_t num_arrays, size_t at, size_t count) {
  std::copy_n(reinterpret_cast<const T*>(arrays[0]) + at, count, sum);
  for (size_t array = 1; array < num_arrays; ++array) add(sum, reinterpret_cast<const T*>(arrays[array]) + at, count);
}

template <typename T>
void sum_in_place_typed(const std::vector<std::byte*>& arrays, size_t count) {
  T sum[kTile];
  for (size_t at = 0; at < count; at += kTile) {
    const size_t length = std::min(kTile, count - at);
    sum_tile(sum, arrays.data(), arrays.size(), at, length);
    for (std::byte* array : arrays) std::copy_n(sum, length, reinterpret_cast<T*>(array) + at);
  }
}

/// Calls `body` with a value of the C++ type of `type`.
template <typename Body>
void with_type(at::ScalarType type, Body body) {
  switch (type) {
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    case at::kHalf:
      return body(c10::Half{});
    case at::kBFloat16:
      return body(c10::BFloat16{});
    case at::kLong:
      return body(int64_t{});
    case at::kInt:
      return body(int32_t{});
    case at::kShort:
      return body(int16_t{});
    case at::kChar:
      return body(int8_t{});
    case at::kByte:
      return body(uint8_t{});
    default:
      fail(ErrorCode::kBadInput, "sums over ranks of ", type, " are not supported");
  }
}

}  // namespace

void sum_in_place(const std::vector<std::byte*>& arrays, size_t count, at::ScalarType type) {
  with_type(type, [&]<typename T>(T) { sum_in_place_typed<T>(arrays, count); });
}

void sum_into(void* sum, const std::vector<const std::byte*>& arrays, size_t count, at::ScalarType type) {
  with_type(type, [&]<typename T>(T) { sum_tile(static_cast<T*>(sum), arrays.data(), arrays.size(), 0, count); });
}

}  // namespace cohort
