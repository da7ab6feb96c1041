#pragma once
// Lossy exchange of gradients: fewer bytes on a slow link, with error feedback, so that what one step leaves out the next ones send.
//
// A compressor replaces the all-reduce of one flat buffer. Error feedback (Seide et al. 2014; Karimireddy et al. 2019): x = gradient +
// residual is compressed to c(x), the residual becomes x - c(x), and what is exchanged is the sum over ranks of c(x).

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

/// A buffer of gradients as a compressor sees it: matrices keep their shape, which PowerSGD needs.
struct CompressedBuffer {
  std::string name;  ///< Stable from step to step.
  struct Part {
    int64_t begin = 0;           ///< First element in the flat buffer.
    std::vector<int64_t> shape;  ///< Of the parameter (or {n} for a piece of one).
  };
  std::vector<Part> parts;
};

/// Of the all-reduce that a compressor replaces.
ExchangeCost uncompressed_cost(int64_t num_elements, int num_ranks);

/// One per rank and buffer. All ranks call it in the same order; results are bitwise equal on all ranks. A group of one rank compresses
/// too: it gets c(x), so that what compression costs and does to a training can be seen without a network.
class Compressor {
 public:
  virtual ~Compressor() = default;
  /// Replaces `flat` (1-d, float) by the sum over the ranks of what was sent of it. Blocking.
  virtual void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) = 0;
  /// Bytes that this rank sent in the last call; 0 before the first. An exchange without compression: uncompressed_cost().
  virtual int64_t sent_bytes() const = 0;
  /// Of one call in a group of that many ranks.
  virtual ExchangeCost cost(int num_ranks) const = 0;
  /// Tensors that a checkpoint keeps ("residual", "q"), by slot name; filled in place when a run goes on.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

/// What a compressor remembers, from before a step that may have to be forgotten. Costs a copy of it.
class CompressorBackup {
 public:
  void keep(Compressor& compressor);
  /// Once for each keep(), and else without effect.
  void restore(Compressor& compressor);

 private:
  std::vector<at::Tensor> kept_;
  bool is_kept_ = false;
};

/// A compressor with error feedback (compressors.h). All elements of the buffer are lossy but those that powersgd does not compress:
/// numbers that must arrive as they are (flags, counts) do not belong in it. `num_elements` floats; `seed` is the same on all ranks. "none"
/// gives null; fp16, bf16, int8, topk:F (0 < F <= 1), powersgd:R (R >= 1). Error(kBadInput) names what is allowed. The tables
/// in job/specs/small_specs.cpp and compressor.cpp have one row for each; each is a file.
std::unique_ptr<Compressor> make_compressor(const std::string& spec, const CompressedBuffer& buffer, int64_t num_elements, uint64_t seed);
/// Checks a spec without making anything.
void check_compressor(const std::string& spec);

// Codes that hold floats in fewer bytes, one by one or in blocks: fp16, bf16, int8. What each does: the head comment of its file.

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

/// fp16, bf16 or int8, by the name in `compress`. Error(kBadInput) for any other compressor.
std::unique_ptr<Codec> make_codec(const std::string& compress);

}  // namespace cohort
