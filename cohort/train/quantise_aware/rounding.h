#pragma once
// Fake quantisation: floats rounded to what codes of few bits can say, with the gradient of what they were.

#include <ATen/core/Tensor.h>

#include "cohort/job/specs/small_specs.h"

namespace cohort {

/// A matrix or kernel {rows, columns...}, float: symmetric, one scale a row or group of its columns, as encode_rows() has them.
at::Tensor rounded_weight(const at::Tensor& weight, const QuantiseAware& how);

/// {samples, ...}, float: 7 bits between the smallest and the largest number of each sample and zero.
at::Tensor rounded_samples(const at::Tensor& samples);

}  // namespace cohort
