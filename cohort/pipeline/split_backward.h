#pragma once
// Backward in two parts, for any module: first the gradients of a stage's inputs, which its predecessor waits for; later, when there is
// time to fill, those of its weights. Together exactly what one backward() does.
//
// See split_backward.cpp for how; source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), section 3.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// One micro-batch of one stage. One thread; several objects may be between their parts at once, in any order. May be used again after
/// weight_part().
class COHORT_API SplitBackward {
 public:
  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// The input part: returns the gradient of each of `inputs` (undefined where it has none). `outputs` and `output_gradients` go together;
  /// undefined gradients count as zero. Inputs are leaves that need gradients, or do not. Gradients of weights that cannot be postponed
  /// exactly (used more than once on the way, or by an operator that runs only once: recompute(), a user's autograd::Function) are
  /// accumulated into `.grad` now, unless one of `before` (micro-batches whose input part came first) still owes its own to the same
  /// weight: sums go in the order of micro-batches. Where no input needs a gradient, all is left to weight_part().
  ///
  /// Consumes the graph behind `outputs`: no other backward through it. The gradients, given and returned, may be read until weight_part():
  /// do not write in them. Hooks of activations may run in both parts; those of weights once, as in backward().
  /// Error(kBadInput): numbers of outputs and gradients differ, an input that needs a gradient is no leaf, or weight_part() is still due.
  std::vector<at::Tensor> input_part(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& output_gradients,
                                     const std::vector<at::Tensor>& inputs, const std::vector<const SplitBackward*>& before = {});
  /// The rest: accumulates into `.grad` of the weights, as backward() would (their hooks run). Frees what was kept. Without effect where
  /// nothing is left to do.
  void weight_part();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
