#pragma once
// Buffers (batch-norm statistics) stay equal on all ranks.

#include <torch/nn/module.h>

#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/parameters.h"

namespace cohort {

/// Running statistics are linear in what each rank saw, so their average by share of the samples is that of one process. One exchange of
/// all floating-point buffers a step; nothing where there are none.
class BufferAverage {
 public:
  BufferAverage(const torch::nn::Module& module, Group group);
  /// Collective. `share` of this rank; those of all ranks add up to 1.
  void average(double share);

 private:
  Group group_;
  std::vector<NamedTensor> buffers_;
};

}  // namespace cohort
