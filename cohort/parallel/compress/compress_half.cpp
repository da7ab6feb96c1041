// fp16 and bf16: each gradient as half of its bytes.
//
// Steps: 1. x = gradient + residual, divided by d (fp16: the smallest power of two >= the number of ranks; bf16: 1); 2. clamped to the
//   largest finite value of the type and rounded to nearest, ties to even; 3. summed in float in rank order (compressors.h) and multiplied
//   by d.
// Cost for a rank: compressors.h with 2 bytes an element. Error of an element of one code, while it is in the type's normal range: |x| /
// 2048
//   (fp16) or |x| / 256 (bf16), and d 2^-25 below fp16's range; the residual sends it later.
// Source: Micikevicius et al. 2018 ("Mixed Precision Training") for the ranges; PyTorch's fp16 and bf16 communication hooks for the use.
// Differences: the sum itself is in float, where all-reduces of halves round after every addition. The division is for the code of the sum,
//   which must fit too; a power of two keeps it exact. What is too large to be sent in one step is not infinite: the rest goes into the
//   residual. Infinite and NaN gradients are sent as such.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

template <typename Half>
COHORT_INLINE void encode_loop(const float* __restrict values, float* __restrict residual, int64_t count, float divisor,
                               uint16_t* __restrict code) {
  constexpr int64_t kTile = 512;
  uint32_t wide[kTile];              // Narrowed in a loop of its own: the compiler would otherwise compute in both widths.
  const float factor = 1 / divisor;  // Exact: a power of two.
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t length = std::min(kTile, count - begin);
    for (int64_t i = 0; i < length; ++i) {
      const float x = values[begin + i] + residual[begin + i], scaled = x * factor;
      const uint32_t bits = bits_of(scaled), magnitude = bits & kMagnitudeMask;
      const bool finite = magnitude < kInfinityBits, too_large = finite & (magnitude > Half::kLargestBits);
      wide[i] = Half::from_float(float_of(select(too_large, Half::kLargestBits | (bits & kSignBit), bits)));
      residual[begin + i] = float_of(select(finite, bits_of(x - Half::to_float(wide[i]) * divisor), 0));
    }
    for (int64_t i = 0; i < length; ++i) code[begin + i] = static_cast<uint16_t>(wide[i]);
  }
}

template <typename Half>
COHORT_INLINE void decode_loop(const uint16_t* __restrict code, int64_t count, float divisor, bool add, float* __restrict sum) {
  if (add)
    for (int64_t i = 0; i < count; ++i) sum[i] += Half::to_float(code[i]) * divisor;
  else
    for (int64_t i = 0; i < count; ++i) sum[i] = Half::to_float(code[i]) * divisor;
}

COHORT_VECTOR_LOOP void encode_fp16(const float* values, float* residual, int64_t count, float divisor, uint16_t* code) {
  encode_loop<Fp16Bits>(values, residual, count, divisor, code);
}
COHORT_VECTOR_LOOP void encode_bf16(const float* values, float* residual, int64_t count, float divisor, uint16_t* code) {
  encode_loop<Bf16Bits>(values, residual, count, divisor, code);
}
COHORT_VECTOR_LOOP void decode_fp16(const uint16_t* code, int64_t count, float divisor, bool add, float* sum) {
  decode_loop<Fp16Bits>(code, count, divisor, add, sum);
}
COHORT_VECTOR_LOOP void decode_bf16(const uint16_t* code, int64_t count, float divisor, bool add, float* sum) {
  decode_loop<Bf16Bits>(code, count, divisor, add, sum);
}

class HalfCodec : public Codec {
 public:
  using Encode = void (*)(const float*, float*, int64_t, float, uint16_t*);
  using Decode = void (*)(const uint16_t*, int64_t, float, bool, float*);
  HalfCodec(Encode encode, Decode decode, bool divides) : encode_(encode), decode_(decode), divides_(divides) {}

  int64_t granule() const override { return 32; }  // A cache line.
  int64_t bytes(int64_t count) const override { return 2 * count; }
  void encode(const float* values, float* residual, int64_t count, int num_ranks, std::byte* code) const override {
    encode_(values, residual, count, divisor(num_ranks), reinterpret_cast<uint16_t*>(code));
  }
  void decode(const std::byte* code, int64_t count, int num_ranks, bool add, float* sum) const override {
    decode_(reinterpret_cast<const uint16_t*>(code), count, divisor(num_ranks), add, sum);
  }

 private:
  float divisor(int num_ranks) const { return divides_ ? static_cast<float>(std::bit_ceil(static_cast<uint32_t>(num_ranks))) : 1; }

  Encode encode_;
  Decode decode_;
  bool divides_;
};

}  // namespace

std::unique_ptr<Codec> make_fp16_codec() { return std::make_unique<HalfCodec>(encode_fp16, decode_fp16, /*divides=*/true); }
std::unique_ptr<Codec> make_bf16_codec() { return std::make_unique<HalfCodec>(encode_bf16, decode_bf16, /*divides=*/false); }

}  // namespace cohort
