#pragma once
// Lossy exchange of gradients: fewer bytes on a slow link, with error feedback, so that what one step leaves out the next ones send.
//
// A compressor replaces the all-reduce of one flat buffer. Error feedback (Seide et al. 2014; Karimireddy et al. 2019): x = gradient +
// residual is compressed to c(x), the residual becomes x - c(x), and what is exchanged is the sum over ranks of c(x).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"

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

/// One per rank and buffer. All ranks call it in the same order; results are bitwise equal on all ranks.
class Compressor {
 public:
  virtual ~Compressor() = default;
  /// Replaces `flat` (1-d, float) by the sum over the ranks of what was sent of it. Blocking.
  virtual void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) = 0;
  /// Bytes that this rank sent in the last call, and those an uncompressed exchange of the same buffer would have sent.
  virtual int64_t sent_bytes() const = 0;
  /// Tensors that a checkpoint keeps ("residual", "q"), by slot name; filled in place when a run goes on.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

/// "none" gives null; fp16, bf16, int8, topk:F (0 < F <= 1), powersgd:R (R >= 1). Error(kBadInput) names what is allowed. The table in
/// compressor.cpp has one row for each; each is a file.
std::unique_ptr<Compressor> make_compressor(const std::string& spec, const CompressedBuffer& buffer, int64_t num_elements, uint64_t seed);
/// Checks a spec without making anything.
void check_compressor(const std::string& spec);

}  // namespace cohort
