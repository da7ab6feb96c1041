#pragma once
// Codes that hold floats in fewer bytes, one by one or in blocks: fp16, bf16, int8. What each does: the head comment of its file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace cohort {

/// A code for floats. Pure functions: the same values give the same bytes. Any thread.
class Codec {
 public:
  virtual ~Codec() = default;
  /// Codes are cut at multiples of this many elements only: the code of a + b elements is that of a, then that of b.
  virtual int64_t granule() const = 0;
  /// Bytes of the code of `count` elements.
  virtual int64_t bytes(int64_t count) const = 0;
  /// x = values + residual; code = c(x); residual = x - c(x). `num_ranks` such codes will be added.
  virtual void encode(const float* values, float* residual, int64_t count, int num_ranks, std::byte* code) const = 0;
  /// sum = c(x), or sum + c(x) where `add`. The product of a code and its scale is exact in float.
  virtual void decode(const std::byte* code, int64_t count, int num_ranks, bool add, float* sum) const = 0;
};

std::unique_ptr<Codec> make_fp16_codec();
std::unique_ptr<Codec> make_bf16_codec();
std::unique_ptr<Codec> make_int8_codec();
/// By the name that `compress` has. Error(kBadInput) for one that is no such code.
std::unique_ptr<Codec> make_codec(const std::string& compress);

}  // namespace cohort
