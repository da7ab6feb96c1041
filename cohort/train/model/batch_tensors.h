#pragma once
// A Batch as tensors, and the loss: the model's own, or cross-entropy.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

class LayerGraph;
struct Config;

struct BatchTensors {
  at::Tensor input;   ///< {samples, ...shape.input}: float pictures, or int64 bytes.
  at::Tensor target;  ///< {samples} or {samples, context}, int64; numbers or labels {samples, num_classes}, float.
};

/// Wraps the batch's memory without a copy; the batch must outlive the tensors.
BatchTensors as_tensors(Batch& batch, const DataShape& shape);

/// A copy of the inputs of samples [first, first + count) of `source`, or of as many as there are.
at::Tensor input_batch(const DataSource& source, int64_t first, int64_t count);

/// Cross-entropy of logits {..., classes} and targets {...}: the mean or sum over all targets. With `label_smoothing` e the target is 1 - e
/// of its class plus e spread evenly over all classes (Szegedy et al. 2016, section 7). Error(kBadInput), which names the model `title`, if
/// the two do not fit.
COHORT_PROGRAM_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, bool sum = false,
                                            double label_smoothing = 0, const std::string& title = "this model");

/// The model's own loss, or without one the mean cross-entropy. Error(kBadInput) if its own loss fails, or is not one number.
at::Tensor mean_loss(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double label_smoothing = 0);

/// How the loss is computed; empty functions change nothing.
struct LossRules {
  double label_smoothing = 0;  ///< Over all classes.
  /// Replaces mean_loss().
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> mean = {};
  /// Adds the distillation loss to the mean.
  std::function<at::Tensor(const at::Tensor& mean, const at::Tensor& logits)> add = {};
};
/// The label smoothing of `config` over the classes of `shape`. Error(kBadInput) where it is too large for them.
LossRules loss_rules(const Config& config, const DataShape& shape);

/// The loss of some samples of a step: the mean over them, of the output made float (for_loss()), times `weight`, their part of the step's
/// samples. 0 without samples. Errors as mean_loss() and check_has_gradient().
at::Tensor loss_of(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double weight = 1,
                   const LossRules& rules = {});

/// Error(kBadInput) for a loss without a gradient, because it or the output is detached from the weights.
void check_has_gradient(const LayerGraph& model, const at::Tensor& output, const at::Tensor& loss);

}  // namespace cohort
