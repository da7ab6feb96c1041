#pragma once
// Metrics that --metrics names: what else an evaluation says beside loss and error. A metric is a function of sums over the targets, so
// those of chunks, ranks and layouts are added, and it is the same on all of them but for the rounding of the sums. Doubles throughout.
//
//   top5-error       classes: share of targets whose class is not among the five likeliest (of fewer classes: always 0)
//   balanced-error   classes: 1 - the mean over classes of the share of their targets that are right; classes without targets do not count
//   f1               classes: mean over classes of 2 right / (targets + guesses), the macro F1 score; classes with neither do not count
//   perplexity       classes: exp of the mean cross-entropy
//   mae              numbers: mean of |output - target|, in deviations of the training's targets
//   r2               numbers: 1 - squares of the error / squares of the targets' distance from their mean
//
// and the user's own, which COHORT_METRIC registers.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

struct NamedMetric {
  std::string name;
  int64_t num_sums = 0;
  /// Adds a chunk to `sums`. Scores {targets, classes}, or of a regression numbers and of labels scores {targets}, and the targets
  /// {targets}: float32 or int64 in host memory.
  std::function<void(const at::Tensor& output, const at::Tensor& target, double* sums)> add;
  std::function<double(const double* sums)> value;  ///< NaN where it is not defined.
};

/// Of "f1,perplexity". Error(kBadInput) for a name that is none, one twice, or one that is not of such data.
std::vector<NamedMetric> named_metrics(const std::string& names, const DataShape& data);

}  // namespace cohort
