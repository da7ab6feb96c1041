#pragma once
// For custom training loops whose ranks run out of data at different times: a rank without data keeps taking part in the exchanges, with
// zero samples, until all have run out. Each step's gradient is the mean over the samples that exist.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

#include "cohort/base/export.h"
#include "cohort/parallel/strategy/data_parallel.h"

namespace cohort {

/// A step of all ranks.
struct JointStep {
  int num_ranks = 0;        ///< Ranks that still have data.
  int64_t num_samples = 0;  ///< Of all ranks: the divisor of losses with GradientMean::kSum.
};

/// One per model and rank; `module` and `parallel` must outlive it. One thread.
class COHORT_API Join {
 public:
  /// Error(kBadInput) where the mean of `parallel` is kRanks: the zeros of ranks without data would count.
  Join(torch::nn::Module& module, DataParallel& parallel);

  /// Announces a step with `samples` (at least 1) of this rank, before the step's last backward(), and sets the local samples of
  /// `parallel`. Collective with the other ranks' step() and finish(). Cost: one sum of 16 bytes.
  JointStep step(int64_t samples);
  /// For a rank without more data: takes part without samples in each step that others still make and calls `apply`, which must apply the
  /// gradient as the others do (optimizer.step()). Returns the number of these steps when all ranks have called finish(), with the same
  /// gradients applied on all.
  int64_t finish(const std::function<void()>& apply);

 private:
  JointStep announce(int64_t samples);

  torch::nn::Module& module_;
  DataParallel& parallel_;
};

}  // namespace cohort
