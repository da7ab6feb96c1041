#pragma once
// Buffers (batch-norm statistics) stay equal on all ranks.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/strategy/data_parallel.h"

namespace cohort {

/// Running statistics are linear in what each rank saw, so their average by share of the samples is that of one process. One exchange a
/// step, of those that changed in the step before, with a number for each buffer that says whether it changed on a rank; a second exchange
/// where others did. Buffers that nobody changes (masks, tables) are neither sent nor touched. Nothing where there are no buffers.
///
/// A change is seen by the version that LibTorch counts, or, as batch norm's operators do not count, by the values: all of a small
/// buffer's, 64 of a large one's. Every buffer of floating-point type on a device is taken for changed.
class COHORT_API BufferAverage {
 public:
  BufferAverage(const torch::nn::Module& module, Group group, BufferPolicy policy = BufferPolicy::kAverage);
  /// Collective. `share` of this rank; those of all ranks add up to 1. A rank with share 0 adds nothing, not even a NaN.
  void average(double share);
  /// Of the last average(): what this rank brought.
  int64_t exchanged_bytes() const { return exchanged_bytes_; }

 private:
  struct Buffer {
    NamedTensor named;
    uint32_t version = 0;
    at::Tensor sample;      ///< Values of when it was looked at last; undefined where they are not looked at.
    bool is_due = false;    ///< It goes with the next exchange.
    bool has_come = false;  ///< Its average of this step is there.
    at::ScalarType exchanged_type() const;
  };
  bool is_changed(const Buffer& buffer) const;
  void remember(Buffer& buffer);
  std::vector<float> exchange(const std::vector<float>& flags, double share);
  void exchange_counters(const std::vector<float>& flags);

  Group group_;
  BufferPolicy policy_;
  std::vector<Buffer> buffers_;
  int64_t exchanged_bytes_ = 0;
};

}  // namespace cohort
