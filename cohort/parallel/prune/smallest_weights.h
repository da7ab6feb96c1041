#pragma once
// Selects the smallest weights of tensors that may be divided between ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/job/specs/pruning.h"

namespace cohort {

/// A tensor of two or more dimensions, and this rank's range of its elements.
struct DividedTensor {
  std::string name;
  int64_t num_elements = 0;  ///< Of the whole tensor.
  at::Tensor own;            ///< {n} Float or Double on the CPU, elements [begin, begin + n), row-major; undefined: none.
  int64_t begin = 0;
  double sparsity = 0;  ///< Fraction of the whole tensor to select.
};

/// For each tensor {n} bytes, 0 for elements among the smallest `sparsity` of the whole tensor, 1 for others; undefined where `own` is.
/// `group`: the ranks with the rest, each element on one of them, for which this is collective with the same tensors in the same order;
/// null where every tensor is whole here. With kTwoOfFour only the two smallest of every four consecutive elements qualify (four divides
/// the number of elements). Ties are broken by index, so the result does not depend on the ranks.
std::vector<at::Tensor> keep_all_but_smallest(const std::vector<DividedTensor>& tensors, Pruning::Granularity granularity, Group* group);

}  // namespace cohort
