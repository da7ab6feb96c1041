#pragma once
// Counter-based random numbers: a value is a pure function of its keys (seed, step, layer, sample, position), so every layout and every
// resumed run draws the same. Mixing is SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").

#include <cstdint>

namespace cohort {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// One 64-bit value from any number of keys; the order of the keys matters.
template <typename... Keys>
constexpr uint64_t random_bits(uint64_t seed, Keys... keys) {
  uint64_t state = mix64(seed);
  ((state = mix64(state ^ mix64(static_cast<uint64_t>(keys) + 0x632be59bd9b4e019ULL))), ...);
  return state;
}

/// Uniform in [0, 1) with 53 bits.
constexpr double unit_interval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace cohort
