#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/base/files/safetensors.h"

namespace cohort {

/// How files call the type of `tensor`; Error(kBadInput) naming it for one that no checkpoint holds.
DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor);

}  // namespace cohort
