#pragma once
// Keeps buffers (batch-norm statistics) equal on all ranks.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/strategy/data_parallel.h"

namespace cohort {

/// Running statistics are linear in the data, so their average by share of the samples is that of one process. One exchange per step, of
/// buffers that changed in the previous step, with a flag per buffer that says whether it changed on a rank; a second exchange where others
/// did. Constant buffers (masks, tables) are not exchanged.
///
/// Changes are detected by LibTorch's version counter or, since batch norm's operators do not count, by value: all values of a small
/// buffer, 64 of a large one. Floating-point buffers on a device always count as changed.
class COHORT_API BufferAverage {
 public:
  BufferAverage(const torch::nn::Module& module, Group group, BufferPolicy policy = BufferPolicy::kAverage);
  /// Collective. The `share`s of all ranks add up to 1. A rank with share 0 contributes nothing, not even a NaN.
  void average(double share);
  /// Bytes contributed by this rank in the last average().
  int64_t exchanged_bytes() const { return exchanged_bytes_; }

 private:
  struct Buffer {
    NamedTensor named;
    uint32_t version = 0;
    at::Tensor sample;      ///< Values at the last check; undefined where not compared.
    bool is_due = false;    ///< Part of the next exchange.
    bool has_come = false;  ///< Its average of this step has arrived.
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
