#pragma once
// Conversions between float and the 16-bit formats for vectorised loops.

#include <cstdint>

// Only an inlined body is vectorised with its loop.
#define COHORT_INLINE inline __attribute__((always_inline))

namespace cohort {

// std::bit_cast stays a call in such a loop.
COHORT_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
COHORT_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// A choice between two computed values without a branch, which would prevent vectorisation.
COHORT_INLINE uint32_t select(bool which, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

constexpr uint32_t kSignBit = 0x80000000;
constexpr uint32_t kMagnitudeMask = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;  ///< Magnitudes from here on are infinite or NaN.

COHORT_INLINE uint32_t magnitude_bits(float x) { return bits_of(x) & kMagnitudeMask; }  ///< Ordered as |x|.

// Branch-free conversions, vectorised on every instruction set. Rounds to nearest, ties to even; a half is the low 16 bits of a number;
// infinities stay infinite, NaN stays NaN. Same bits as LibTorch's conversions (compress_half_test.cpp).

struct Fp16Bits {
  static constexpr uint32_t kLargestBits = 0x477fe000;  ///< 65504 as a float.

  static COHORT_INLINE uint32_t from_float(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & kMagnitudeMask;
    // Below 2^-14 the result is a multiple of 2^-24: adding 0.5 makes the processor round at that bit.
    const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t rounded = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    const uint32_t normal = select(rounded < 0x7c00, rounded, 0x7c00);  // Infinite from 65520 on.
    const uint32_t half = select(magnitude < (113u << 23), small, normal);
    return select(magnitude > kInfinityBits, 0x7e00, half) | ((bits >> 16) & 0x8000);
  }

  static COHORT_INLINE float to_float(uint32_t half) {
    const uint32_t shifted = (half & 0x7fff) << 13, exponent = shifted & (31u << 23);
    // A subnormal half is its mantissa times 2^-24: the mantissa of a normal float, less that float's leading one.
    const uint32_t small = bits_of(float_of(shifted + (113u << 23)) - float_of(113u << 23));
    const uint32_t finite = select(exponent == 0, small, shifted + (112u << 23));
    return float_of(select(exponent == (31u << 23), shifted + (224u << 23), finite) | ((half & 0x8000) << 16));
  }
};

struct Bf16Bits {
  static constexpr uint32_t kLargestBits = 0x7f7f0000;

  static COHORT_INLINE uint32_t from_float(float value) {
    const uint32_t bits = bits_of(value), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return select((bits & kMagnitudeMask) > kInfinityBits, 0x7fc0, rounded);
  }

  static COHORT_INLINE float to_float(uint32_t half) { return float_of(half << 16); }
};

}  // namespace cohort
