// int8: each gradient as one signed byte, with one float scale for 256 of them.
//
// Steps: 1. x = gradient + residual; 2. in each block of 256, scale = max|x| / 127, rounded up to 16 significant bits, and q = x / scale to
//   the nearest integer; 3. codes are exchanged and summed as q * scale in float in rank order (compressors.h).
// Cost for a rank: compressors.h with 260/256 bytes an element. Error of an element of one code: scale / 2 = max|x of its block| / 254 (1 +
// 2^-15);
//   the residual sends it later.
// Source: per-block scales of Dettmers et al. 2022 ("8-bit Optimizers via Block-wise Quantization", section 2.1), linear instead of
// dynamic. Differences: rounding to nearest instead of the unbiased random rounding of QSGD (Alistarh et al. 2017): with error feedback
// bias does not
//   matter, and the error is half as large, the same in every run. With 16 significant bits in the scale q * scale is exact in float. A
//   block with an infinite or NaN element becomes NaN as a whole; one without an element above 1e-30 is sent as zeros.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kBlockBytes = kBlock + static_cast<int64_t>(sizeof(float));

/// residual = values + residual. Returns the bits of the largest magnitude: positive floats are ordered as their bits.
COHORT_VECTOR_LOOP uint32_t add_residual(const float* __restrict values, float* __restrict residual, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = values[i] + residual[i];
    residual[i] = x;
    const uint32_t magnitude = magnitude_bits(x);
    largest = largest > magnitude ? largest : magnitude;
  }
  return largest;
}

/// code = round(x / scale), x -= code * scale.
COHORT_VECTOR_LOOP void quantise(float* __restrict x, int64_t count, float scale, int8_t* __restrict code) {
  constexpr float kRounder = 0x1.8p23f;  // Adding it leaves the nearest integer in the low bits.
  const float inverse = 1 / scale;
  for (int64_t i = 0; i < count; ++i) {
    const float rounded = x[i] * inverse + kRounder;
    code[i] = static_cast<int8_t>(bits_of(rounded));
    x[i] -= (rounded - kRounder) * scale;
  }
}

COHORT_VECTOR_LOOP void dequantise(const int8_t* __restrict code, int64_t count, float scale, bool add, float* __restrict sum) {
  if (add)
    for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(code[i]) * scale;
  else
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<float>(code[i]) * scale;
}

float scale_for(uint32_t largest_bits) {
  if (largest_bits >= kInfinityBits) return std::numeric_limits<float>::quiet_NaN();
  const float largest = float_of(largest_bits);
  if (largest < 1e-30f) return 0;
  return float_of((bits_of(largest / 127) + 0xff) & ~0xffu);
}

class Int8Codec : public Codec {
 public:
  int64_t granule() const override { return kBlock; }
  int64_t bytes(int64_t count) const override {
    const int64_t rest = count % kBlock;  // Scales are aligned to 4 bytes.
    return count / kBlock * kBlockBytes + (rest ? static_cast<int64_t>(sizeof(float)) + (rest + 3) / 4 * 4 : 0);
  }

  void encode(const float* values, float* residual, int64_t count, int, std::byte* code) const override {
    for (int64_t at = 0; at < count; at += kBlock, code += kBlockBytes) {
      const int64_t length = std::min(kBlock, count - at);
      int8_t* const quantised = reinterpret_cast<int8_t*>(code + sizeof(float));
      const float scale = scale_for(add_residual(values + at, residual + at, length));
      std::memcpy(code, &scale, sizeof scale);
      if (scale > 0) {
        quantise(residual + at, length, scale, quantised);
      } else {
        std::memset(quantised, 0, static_cast<size_t>(length));
        if (scale != 0) std::fill_n(residual + at, length, 0.0f);
      }
    }
  }

  void decode(const std::byte* code, int64_t count, int, bool add, float* sum) const override {
    for (int64_t at = 0; at < count; at += kBlock, code += kBlockBytes) {
      float scale;
      std::memcpy(&scale, code, sizeof scale);
      dequantise(reinterpret_cast<const int8_t*>(code + sizeof(float)), std::min(kBlock, count - at), scale, add, sum + at);
    }
  }
};

}  // namespace

std::unique_ptr<Codec> make_int8_codec() { return std::make_unique<Int8Codec>(); }

}  // namespace cohort
