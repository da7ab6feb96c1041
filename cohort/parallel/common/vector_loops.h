#pragma once
// Loops over plain arrays that run at the speed of the machine's vectors and give the same bits on every machine.

#include <cstdint>

// One copy for each instruction set; the machine picks at load. A product is never contracted with an addition (no fused multiply-add):
// what several ranks compute each for itself then agrees bitwise, also when their processors differ.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTOR_LOOP                                                        \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default"), \
                 optimize("O3", "fp-contract=off", "no-math-errno", "no-trapping-math")))
#else
#define COHORT_VECTOR_LOOP
#endif

// For what such a loop calls: only an inlined body is vectorised.
#define COHORT_INLINE inline __attribute__((always_inline))

namespace cohort {

// std::bit_cast stays a call in such a loop.
COHORT_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
COHORT_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// A choice between two computed values without a branch: the compiler would else compute only one of them and not vectorise.
COHORT_INLINE uint32_t select(bool which, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

constexpr uint32_t kSignBit = 0x80000000;
constexpr uint32_t kMagnitudeMask = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;  ///< Magnitudes from here on are infinite or NaN.

COHORT_INLINE uint32_t magnitude_bits(float x) { return bits_of(x) & kMagnitudeMask; }  ///< Ordered as |x|.

}  // namespace cohort
