#pragma once
// Optimizers for pushes that cover only part of a step.
//
// A push of b of the B samples of its step has weight a = b / B. With m the mean gradient over its samples, it is applied as if the step
// were cut into 1 / a equal updates:
//   decays            mu^a, beta1^a, beta2^a in place of mu, beta1, beta2
//   rate              a * the step's learning rate
//   momentum          v = mu^a v + c (m + decay w), c = (1 - mu^a) / (1 - mu): 1 / a pushes of one gradient leave v as one step does
//   adam, adamw       bias correction for the steps so far, fractions included: the nearest whole number of such pushes
//   clipping          of m, push by push
// a = 1 is the step of parallel/optimizer/update.h, bit by bit. With sgd, 1 / a pushes of one version equal the step up to rounding and the
// effect of weight decay on weights that moved meanwhile. With momentum and adam they do not: weights move 1 / a times within the step, and
// adam sees the noise of smaller batches. Cost of a push: one pass over the model.

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/job/update_rule.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

struct NamedTensor;
struct ModelTensors;
struct StepNumbers;
struct WorkItem;
struct WorkResult;

struct PushNumbers {
  double weight = 1;  ///< a.
  double learning_rate = 0;
  double clip_norm = 0;  ///< 0: no clipping.
};

/// One thread.
class PushOptimizer {
 public:
  /// For the trained parameters of a model; the state begins at zero.
  PushOptimizer(const UpdateRule& rule, const std::vector<NamedTensor>& trained);

  /// Updates `weights` (one per parameter) by `gradients`, each a * m; where a gradient is undefined, weights and state stay. Returns the
  /// norm of m before clipping, 0 without clipping.
  double apply(const PushNumbers& numbers, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients);
  /// A full step on the module with the mean gradient of `item`, at the full rate: what a worker with its own optimizer does. Scales
  /// `result.gradients` in place; returns the norm as apply() does.
  double local_step(const ModelTensors& model, const WorkItem& item, const WorkResult& result, const StepNumbers& numbers);

  PushOptimizer copy() const;
  /// State arrays, parameter by parameter.
  std::vector<at::Tensor> arrays() const;

  /// Aliases of the state as "optimizer/NAME/SLOT", as ShardOptimizer names them, with the update count in steps.
  std::vector<FlatPiece> pieces(const std::vector<NamedTensor>& trained);
  /// Call after loading into pieces(): takes the counts over, which checkpoints round to float.
  void load_counts();
  const std::vector<double>& steps() const { return steps_; }
  void set_steps(std::vector<double> steps) { steps_ = std::move(steps); }

 private:
  UpdateRule rule_;
  std::vector<std::vector<at::Tensor>> slots_;  // Flat state tensors per parameter.
  std::vector<double> steps_;                   // Steps applied, per parameter.
  std::vector<at::Tensor> saved_steps_;         // steps_ in the form of checkpoints, for rules that count updates.
};

}  // namespace cohort
