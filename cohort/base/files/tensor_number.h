#pragma once
// One number of an array in a file, whatever its type and alignment.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cohort/base/files/safetensors.h"

namespace cohort {

inline bool is_float(DType type) { return type == DType::kF64 || type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

template <typename T>
T load_number(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

/// IEEE 754 binary16, exact.
inline double half_number(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

/// Element `index` of the array at `data`.
inline double number_of(DType type, const void* data, int64_t index) {
  switch (type) {
    case DType::kF64:
      return load_number<double>(data, index);
    case DType::kF32:
      return static_cast<double>(load_number<float>(data, index));
    case DType::kF16:
      return half_number(load_number<uint16_t>(data, index));
    case DType::kBF16:
      return static_cast<double>(std::bit_cast<float>(uint32_t{load_number<uint16_t>(data, index)} << 16));
    case DType::kI64:
      return static_cast<double>(load_number<int64_t>(data, index));
    case DType::kI32:
      return load_number<int32_t>(data, index);
    case DType::kI16:
      return load_number<int16_t>(data, index);
    case DType::kI8:
      return load_number<int8_t>(data, index);
    case DType::kU8:
      return load_number<uint8_t>(data, index);
    case DType::kBool:
      return load_number<uint8_t>(data, index) != 0;
  }
  return 0;
}

}  // namespace cohort
