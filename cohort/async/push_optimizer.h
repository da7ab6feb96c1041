#pragma once
// The optimizers where a push is only a part of a step: optimizer state of a whole model, and an update by a part of a step.
//
// A push of b of the B samples of its step is the part a = b / B of a step. With m the mean gradient over its samples, as if a step were
// cut into 1 / a equal updates:
//   decays            mu^a, beta1^a, beta2^a in place of mu, beta1, beta2
//   rate              a x the rate of the step
//   momentum          v = mu^a v + c (m + decay w), c = (1 - mu^a) / (1 - mu): 1 / a pushes of one gradient leave v as one step does
//   adam, adamw       bias is corrected for the steps so far, parts included: the nearest whole number of such pushes
//   clipping          of m, by itself
// With a = 1 all of this is the step of parallel/optimizer/update.h, bit by bit; with sgd, 1 / a pushes of one version are the step up to
// rounding, and to what weight decay makes of weights that move meanwhile. With momentum and adam they are not: weights move 1 / a times
// within it, and adam sees the noise of smaller batches.

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/job/update_rule.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

struct NamedTensor;

struct PushNumbers {
  double weight = 1;  ///< a.
  double learning_rate = 0;
  double clip_norm = 0;  ///< 0: no clipping.
};

/// The rule for a push of weight a, and what its mean gradient is multiplied by.
struct PushRule {
  UpdateRule rule;
  double gradient_factor = 1;
};
PushRule rule_of_push(const UpdateRule& rule, double weight);

/// One thread.
class PushOptimizer {
 public:
  /// For the trained parameters of a model, whose state begins at zero.
  PushOptimizer(const UpdateRule& rule, const std::vector<NamedTensor>& trained);

  /// Updates `weights` (one a parameter) by `gradients`: of the sum of the losses of the push's samples over the samples of their whole
  /// step, so a x m; undefined where there is none, and then weights and state stay. Returns the norm of m before clipping, 0 without it.
  double apply(const PushNumbers& numbers, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients);

  PushOptimizer copy() const;
  /// Arrays of the state, parameter by parameter.
  std::vector<at::Tensor> arrays() const;
  /// Momentum of a parameter; undefined for rules without.
  at::Tensor momentum(size_t parameter) const;

  /// "optimizer/NAME/SLOT" as ShardOptimizer has them, aliases of the memory; the count of updates in steps.
  std::vector<FlatPiece> pieces(const std::vector<NamedTensor>& trained);
  /// After reading into pieces(): the counts as they are there, which are rounded to float.
  void load_counts();
  const std::vector<double>& steps() const { return steps_; }
  void set_steps(std::vector<double> steps) { steps_ = std::move(steps); }

 private:
  PushOptimizer() = default;

  UpdateRule rule_;
  std::vector<std::vector<at::Tensor>> slots_;  // One list a parameter, flat.
  std::vector<double> steps_;                   // Applied, one a parameter.
  std::vector<at::Tensor> images_;              // Of them for checkpoints, where the rule counts.
};

}  // namespace cohort
