#pragma once
// A data set of tensors in memory, for COHORT_DATA and cohort::train().

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Samples `inputs` {samples, ...} with `targets`: integers {samples} are classes, floating-point numbers {samples} or {samples, numbers}
/// are a regression, and with the setting "task=labels" 0 and 1 {samples, labels} are labels. The rest is as for --data npy: numbers are
/// normalised over the training part, bytes {samples, 1 or 3, height, width} are pictures, `options` has the validation samples, and
/// `settings` are those after the path: "classes=10,normalise=none". Contiguous tensors in host memory are shared and must not be changed;
/// others are copied. Error(kBadInput) for tensors that do not fit.
COHORT_API DataSet tensor_data(const at::Tensor& inputs, const at::Tensor& targets, const DataOptions& options = {},
                               const std::string& settings = "");

}  // namespace cohort
