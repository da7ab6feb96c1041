// Ranks with unequal numbers of steps.
//
// Before each exchange the ranks sum (has data, samples). A rank without data adds (0, 0) and, while another has data, takes part in the
// exchange without a gradient; where none has data, all are done at the same time.
//
// Cost: one sum of two numbers per step, which no rank can begin before all have ended the previous step.
//
// Source: PyTorch's Join context manager (torch.distributed.algorithms.join). Differences: the mean is over samples instead of ranks, and a
// rank without data runs the exchange of any step without shadowing its collectives.
#include "cohort/parallel/join.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "cohort/base/fail.h"

namespace cohort {

Join::Join(torch::nn::Module& module, DataParallel& parallel) : module_(module), parallel_(parallel) {
  if (parallel.mean() == GradientMean::kRanks)
    fail(ErrorCode::kBadInput,
         "Join: a DataParallel with GradientMean::kRanks divides by all ranks, also by those that have run out of data; make it with "
         "GradientMean::kSamples, or with kSum and losses divided by JointStep::num_samples");
}

JointStep Join::announce(int64_t samples) {
  Group& group = parallel_.group();
  at::Tensor sums = at::empty({2}, at::kDouble);  // Exact up to 2^53 samples.
  auto* const values = sums.data_ptr<double>();
  values[0] = samples > 0 ? 1 : 0;
  values[1] = static_cast<double>(samples);
  if (group.size() > 1) group.all_reduce_sum(sums, "which ranks still have data");
  return {static_cast<int>(values[0]), static_cast<int64_t>(values[1])};
}

JointStep Join::step(int64_t samples) {
  if (samples < 1) fail(ErrorCode::kBadInput, "Join: a step of ", samples, " samples; a rank without data calls finish()");
  parallel_.set_local_samples(samples);
  return announce(samples);
}

int64_t Join::finish(const std::function<void()>& apply) {
  int64_t steps = 0;
  for (; announce(0).num_ranks > 0; ++steps) {
    parallel_.set_local_samples(0);
    module_.zero_grad();  // Left-over gradients would count in this step.
    parallel_.exchange_without_backward();
    apply();
  }
  return steps;
}

}  // namespace cohort
