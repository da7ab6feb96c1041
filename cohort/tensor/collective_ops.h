#pragma once
// The exchanges inside of a tensor-parallel layer, as operations that autograd knows: each pair of forward and backward keeps the result
// and every gradient what one process computes. Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022 for the last
// two.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "cohort/comm/group.h"

namespace cohort {

// All: collective, forward and backward, in the same order on all ranks of `group`; float, double, bfloat16, half; CPU. A group of one
// rank: the input itself.

/// The same tensor on all ranks in and out; the gradient is the sum over ranks. In front of a column-parallel layer.
at::Tensor copy_to_ranks(const at::Tensor& input, const Group& group);
/// The sum over ranks of what each has, the same on all; the gradient passes. After a row-parallel layer.
at::Tensor sum_over_ranks(const at::Tensor& input, const Group& group);
/// Pieces of dimension `dim`, joined in rank order; the gradient is this rank's piece of the (equal) gradients.
at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim, const Group& group);
/// This rank's piece of dimension `dim` of a tensor that is the same on all; the gradients are joined. Error(kBadInput) where it does not
/// divide.
at::Tensor slice_for_rank(const at::Tensor& input, int64_t dim, const Group& group);
/// Joins like gather_from_ranks; the gradient is the sum over ranks of this rank's piece (each rank uses all of the result differently).
at::Tensor gather_with_sum(const at::Tensor& input, int64_t dim, const Group& group);
/// This rank's piece of the sum over ranks; the gradients are joined.
at::Tensor sum_and_slice(const at::Tensor& input, int64_t dim, const Group& group);

/// What this process adds to sums, of all of the above, passes through this from now on; empty: as it is. `verify` shows so that it finds a
/// sum that is wrong. Before any thread is started.
void change_summands(std::function<at::Tensor(const at::Tensor&)> change);

}  // namespace cohort
