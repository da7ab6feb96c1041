#pragma once
// How the sparsity of a model is divided over its matrices. Torch-free.

#include <cstdint>
#include <vector>

namespace cohort {

/// Part of each tensor that is to be zero, so that `sparsity` of all their elements is. `shapes`: of tensors that have elements. Rises with
/// `sparsity` for each of them.
std::vector<double> layer_sparsities(const std::vector<std::vector<int64_t>>& shapes, double sparsity);

}  // namespace cohort
