#pragma once
// A Batch as tensors, and the loss of all built-in tasks.

#include <ATen/core/Tensor.h>

#include "cohort/data/source.h"

namespace cohort {

struct BatchTensors {
  at::Tensor input;   ///< {samples, ...shape.input}: float pictures, or int64 bytes.
  at::Tensor target;  ///< {samples} or {samples, context}, int64.
};

/// Wraps the batch's memory without a copy; the batch must outlive the tensors.
BatchTensors as_tensors(Batch& batch, const DataShape& shape);

/// Cross-entropy of logits {..., classes} and targets {...}: the mean over all targets, or their sum.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, bool sum = false);

}  // namespace cohort
