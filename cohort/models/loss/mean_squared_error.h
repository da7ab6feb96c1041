#pragma once
// The loss of a regression.

#include <ATen/core/Tensor.h>

namespace cohort {

/// Mean of (output - target)^2 over all numbers, fp32. Error(kBadInput) where they are not as many.
at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target);

}  // namespace cohort
