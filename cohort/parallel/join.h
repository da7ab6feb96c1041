#pragma once
// For training loops of one's own whose ranks run out of data at different times: a rank that has none left keeps taking part in the
// others' exchanges, with zero samples, until all have run out. The gradient of each step is the mean over the samples that there are.
//
//   cohort::DataParallel parallel(*model, group, {.mean = cohort::GradientMean::kSamples});
//   cohort::Join join(*model, parallel);
//   for (auto& batch : my_batches) {        // as many as this rank happens to have, none at all included
//     join.step(batch.size());
//     optimizer.zero_grad();
//     loss_of(batch).backward();
//     optimizer.step();
//   }
//   join.finish([&] { optimizer.step(); }); // and from here the next epoch may begin

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

#include "cohort/base/export.h"
#include "cohort/parallel/strategy/data_parallel.h"

namespace cohort {

/// What all ranks together do in a step.
struct JointStep {
  int num_ranks = 0;        ///< That still have data.
  int64_t num_samples = 0;  ///< Of all of them: what GradientMean::kSum divides each loss by.
};

/// One per model and rank; module and parallel must outlive it. One thread.
class COHORT_API Join {
 public:
  /// Error(kBadInput) where the mean of `parallel` is kRanks: the zeros of ranks without data would count.
  Join(torch::nn::Module& module, DataParallel& parallel);

  /// Announces a step with `samples` (at least 1) of this rank: before the step's last backward(), which exchanges. Sets the local samples
  /// of `parallel`. Collective with the other ranks' step() and finish(). Cost: one sum of 16 bytes.
  JointStep step(int64_t samples);
  /// This rank has no more data. For each step that others still make it takes part without samples and calls `apply`, which must apply the
  /// gradient as the others do (optimizer.step()). Returns when all ranks have called finish(); every rank has then applied the same
  /// gradients. Returns how many steps it made for others.
  int64_t finish(const std::function<void()>& apply);

 private:
  JointStep announce(int64_t samples);

  torch::nn::Module& module_;
  DataParallel& parallel_;
};

}  // namespace cohort
