#pragma once
// Is this layout the same training? Trains a few steps under one process and under a layout, on the user's own model and data, and compares
// every tensor: parameters, buffers and optimizer state.

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/config.h"
#include "cohort/base/layout.h"
#include "cohort/checkpoint/compare.h"
#include "cohort/data/source.h"

namespace cohort {

struct VerifyResult {
  Layout layout;
  int64_t steps = 0;
  std::vector<TensorDifference> tensors;  ///< To one process; largest relative difference first.
  double bound = 0;
  std::string reason;  ///< Where the bound comes from.
  /// Largest difference to one process that takes the ranks' micro-batches one after the other; 0: bitwise equal, negative: not compared
  /// (batch norm over all ranks has no such process).
  double accumulated = -1;
  bool repeats = false;    ///< Two runs of the layout agree bitwise.
  bool comparable = true;  ///< false: the bound is so large that it would prove nothing.
  bool ok() const { return comparable && !tensors.empty() && tensors.front().relative_difference <= bound && repeats; }
};

/// One result for each of `layouts`, whose trainings by one process are shared. `done` gets each as it is there. Forks its ranks; the
/// calling process must have one thread. Works in a temporary folder that it removes. Error when a training fails.
///
/// The bound is measured: one process is run again with its batch added up in 2 and in 3 pieces, which changes nothing but the rounding
/// (with batch norm over all ranks, which pieces would change: with initial weights that differ in the last place). A
/// layout may differ by kMargin times the largest difference that this makes, or by kFloor where it makes (almost) none. Where that exceeds
/// kCeiling (of half precision: kCeilingOfHalfPrecision) the training itself amplifies rounding beyond comparison, and the result is not
/// ok.
void verify(const Config& config, const DataSet& data, const std::vector<Layout>& layouts,
            const std::function<void(const VerifyResult&)>& done);

}  // namespace cohort
