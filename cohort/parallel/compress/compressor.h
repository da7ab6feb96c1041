#pragma once
// Lossy exchange of gradients: fewer bytes on a slow link, with error feedback, so that what one step leaves out the next ones send.
//
// A compressor replaces the all-reduce of one flat buffer. Error feedback (Seide et al. 2014; Karimireddy et al. 2019): x = gradient +
// residual is compressed to c(x), the residual becomes x - c(x), and the sum over ranks of c(x) is exchanged.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

/// A buffer of gradients; matrices keep their shape, which PowerSGD needs.
struct CompressedBuffer {
  std::string name;  ///< Stable from step to step.
  struct Part {
    int64_t begin = 0;           ///< First element in the flat buffer.
    std::vector<int64_t> shape;  ///< Of the parameter (or {n} for a slice of one).
  };
  std::vector<Part> parts;
};

/// Cost of the all-reduce that a compressor replaces.
ExchangeCost uncompressed_cost(int64_t num_elements, int num_ranks);

/// One per rank and buffer, called in the same order on all ranks; results are bitwise equal. A group of one rank compresses too and gets
/// c(x), which shows the effect of compression without a network.
class Compressor {
 public:
  virtual ~Compressor() = default;
  /// Replaces `flat` (1-d, float) by the sum over the ranks of what they sent. Blocking.
  virtual void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) = 0;
  /// Bytes sent by this rank in the last call; 0 before. Without compression: uncompressed_cost().
  virtual int64_t sent_bytes() const = 0;
  /// Cost of one call in a group of `num_ranks`.
  virtual ExchangeCost cost(int num_ranks) const = 0;
  /// Tensors of a checkpoint ("residual", "q") by slot name; filled in place when a run is resumed.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

/// A copy of a compressor's state before a step that may have to be undone.
class CompressorBackup {
 public:
  void keep(Compressor& compressor);
  /// Once per keep(), otherwise without effect.
  void restore(Compressor& compressor);

 private:
  std::vector<at::Tensor> kept_;
  bool is_kept_ = false;
};

/// A compressor with error feedback (compressors.h): fp16, bf16, int8, topk:F (0 < F <= 1), powersgd:R (R >= 1); "none" gives null. All
/// elements of the buffer are lossy except those that powersgd leaves uncompressed: exact numbers (flags, counts) do not belong in it.
/// `num_elements` floats; `seed` is the same on all ranks. Error(kBadInput) lists valid specs. Each compressor is a file and a row in
/// job/specs/small_specs.cpp and compressor.cpp.
std::unique_ptr<Compressor> make_compressor(const std::string& spec, const CompressedBuffer& buffer, int64_t num_elements, uint64_t seed);
/// Checks a spec.
void check_compressor(const std::string& spec);

// Codes of floats in fewer bytes: fp16, bf16, int8.

/// A code of floats. Deterministic and thread-safe.
class Codec {
 public:
  virtual ~Codec() = default;
  /// Codes can be split at multiples of this many elements: the code of a + b elements is that of a, then that of b.
  virtual int64_t granule() const = 0;
  /// Bytes of the code of `count` elements.
  virtual int64_t bytes(int64_t count) const = 0;
  /// x = values + residual; code = c(x); residual = x - c(x). `num_ranks` such codes will be summed.
  virtual void encode(const float* values, float* residual, int64_t count, int num_ranks, std::byte* code) const = 0;
  /// sum = c(x), or sum + c(x) where `add`. The product of a code and its scale is exact in float.
  virtual void decode(const std::byte* code, int64_t count, int num_ranks, bool add, float* sum) const = 0;
};

/// fp16, bf16 or int8, by the name in `compress`. Error(kBadInput) for any other compressor.
std::unique_ptr<Codec> make_codec(const std::string& compress);

}  // namespace cohort
