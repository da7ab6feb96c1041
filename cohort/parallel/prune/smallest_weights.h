#pragma once
// Which weights of a tensor are the smallest, where the tensor may be divided between ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/job/specs/pruning.h"

namespace cohort {

/// A tensor of two or more dimensions, and the run of its elements that this rank has.
struct DividedTensor {
  std::string name;
  int64_t num_elements = 0;  ///< Of the whole.
  at::Tensor own;            ///< {n} Float or Double on the CPU, elements [begin, begin + n) of the whole, row-major; undefined: none.
  int64_t begin = 0;
  double sparsity = 0;  ///< Part of the whole that is among the smallest.
};

/// One a tensor: {n} bytes, 0 for elements that are among the smallest `sparsity` of its whole tensor, 1 for all others; undefined where
/// `own` is. `group`: the ranks that have the rest, each element on one of them, for which this is collective with the same tensors in the
/// same order; null where every tensor is whole here. Of kTwoOfFour only the two smallest of every four consecutive elements count, whose
/// number divides that of the elements. Of equal magnitudes the first are smaller, so the answer is one, whatever ranks there are.
std::vector<at::Tensor> keep_all_but_smallest(const std::vector<DividedTensor>& tensors, Pruning::Granularity granularity, Group* group);

}  // namespace cohort
