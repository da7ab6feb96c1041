#pragma once
// Tensors in memory as data, for COHORT_DATA and cohort::train().

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Samples `inputs` {samples, ...} with `targets`: whole numbers {samples} are classes, floating-point ones {samples} or {samples, numbers}
/// a regression; with the setting "task=labels" they are 0 and 1 {samples, labels}. All else as --data npy has it: numbers are normalised
/// over the training part, bytes {samples, 1 or 3, height, width} are pictures, and `options` says how many are for validation. `settings`
/// as behind that path: "classes=10,normalise=none". Copies to the host's memory where they lie elsewhere, or are not contiguous; else they
/// are shared and must not be changed. Error(kBadInput) for what does not fit.
COHORT_API DataSet tensor_data(const at::Tensor& inputs, const at::Tensor& targets, const DataOptions& options = {},
                               const std::string& settings = "");

}  // namespace cohort
