#pragma once
// Consecutive elements of one tensor as a rank holds them: what a checkpoint is made of.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

struct FlatPiece {
  std::string name;            ///< Of the whole tensor, e.g. "model/conv1.weight" or "optimizer/conv1.weight/momentum".
  at::Tensor values;           ///< 1-d, contiguous; aliases the memory in use, so that reading into it restores it.
  std::vector<int64_t> shape;  ///< Of the whole tensor; {} for a scalar.
  int64_t begin = 0;           ///< Index of the first element in the whole tensor, row-major.
};

}  // namespace cohort
