#pragma once
// A Batch as tensors, and the loss: the model's own, or that of all built-in tasks.

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

/// Samples [first, first + count) of `source`, or as many as there are, as a model takes them; memory of its own.
at::Tensor input_batch(const DataSource& source, int64_t first, int64_t count);

/// Cross-entropy of logits {..., classes} and targets {...}: the mean over all targets, or their sum. With `label_smoothing` e each target
/// is 1 - e of its class and e spread evenly over all classes (Szegedy et al. 2016, section 7). Error(kBadInput) where they do not fit, of
/// the model called `title`.
COHORT_PROGRAM_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, bool sum = false,
                                            double label_smoothing = 0, const std::string& title = "this model");

/// What `model` trains: its own loss where it has one, else the mean cross-entropy. Error(kBadInput) where its own is not one number, or
/// does not take these tensors.
at::Tensor mean_loss(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double label_smoothing = 0);

/// What else than the model and its targets decides the loss. Empty functions: nothing.
struct LossRules {
  double label_smoothing = 0;  ///< Over all classes.
  /// In place of mean_loss().
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> mean = {};
  /// The mean with what a teacher makes of it.
  std::function<at::Tensor(const at::Tensor& mean, const at::Tensor& logits)> add = {};
};
/// The label smoothing of `config` over the classes of `shape`. Error(kBadInput) where it is too large for them.
LossRules loss_rules(const Config& config, const DataShape& shape);

/// The part of a step's loss that some samples are: the mean of `output`, made floats (for_loss), over them, times `weight`, which is their
/// number / that of the step's samples; 0 without samples. Backward() can start from it. Error(kBadInput) as mean_loss() and
/// check_has_gradient() have it.
at::Tensor loss_of(const LayerGraph& model, const at::Tensor& output, const at::Tensor& target, double weight = 1,
                   const LossRules& rules = {});

/// Error(kBadInput) for a loss that backward() cannot start from, because it or the output that it was made of is cut off from the weights.
void check_has_gradient(const LayerGraph& model, const at::Tensor& output, const at::Tensor& loss);

}  // namespace cohort
