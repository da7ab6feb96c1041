#pragma once
// Backward in two parts, for any module: first the gradients of a stage's inputs, which its predecessor waits for; later those of its
// weights. Together exactly one backward(). Method: split_backward.cpp; source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024),
// section 3.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// One micro-batch of one stage. One thread; several objects may be between their parts at once, in any order. Reusable after
/// weight_part().
class COHORT_API SplitBackward {
 public:
  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// Input part: returns the gradient of each of `inputs` (undefined where it has none), which are leaves if they need gradients. `outputs`
  /// and `output_gradients` correspond; undefined gradients count as zero. Gradients of weights that cannot be postponed exactly (used more
  /// than once, or by an operator that runs only once: recompute(), a user's autograd::Function) are accumulated into `.grad` now, unless
  /// one of `before` (earlier micro-batches) still owes its own to the same weight: sums are in the order of micro-batches. Where no input
  /// needs a gradient, all is left to weight_part().
  /// weight: sums go in the order of micro-batches. Where no input needs a gradient, all is left to weight_part().
  ///
  /// Consumes the graph behind `outputs`. The gradients, given and returned, must not be written before weight_part(). Hooks of activations
  /// may run in both parts, those of weights once. Error(kBadInput): numbers of outputs and gradients differ, an input that needs a
  /// gradient is not a leaf, or weight_part() is still due.
  std::vector<at::Tensor> input_part(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& output_gradients,
                                     const std::vector<at::Tensor>& inputs, const std::vector<const SplitBackward*>& before = {});
  /// Weight part: accumulates into `.grad` of the weights like backward(), with their hooks, and frees what was kept. Without effect where
  /// nothing is left to do.
  void weight_part();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
