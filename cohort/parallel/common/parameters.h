#pragma once
// The distinct parameters and buffers of a module, each once under its first name.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Parameters in registration order. Tied weights appear once; `aliases` maps their other names to the first.
COHORT_API std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module,
                                                        std::map<std::string, std::string>* aliases = nullptr);
/// The same for buffers (batch-norm statistics, counters).
COHORT_API std::vector<NamedTensor> distinct_buffers(const torch::nn::Module& module,
                                                     std::map<std::string, std::string>* aliases = nullptr);

/// Parameters that require gradients. Error(kBadInput) where one is not contiguous: they are exchanged and updated as flat memory.
COHORT_API std::vector<NamedTensor> trained_parameters(const std::vector<NamedTensor>& all);

COHORT_API int64_t total_bytes(const std::vector<NamedTensor>& tensors);

/// One line per tensor: "conv1.weight Float [32, 1, 5, 5] trained". Must be equal on ranks that train together.
COHORT_API std::string signature(const std::vector<NamedTensor>& parameters);

}  // namespace cohort
