#pragma once
// The exchanges in a tensor-parallel layer as autograd operations: each pair of forward and backward keeps result and gradients those of
// one process. Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022 for the last two.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "cohort/comm/group.h"

namespace cohort {

// All are collective, forward and backward, in the same order on all ranks of `group`; float, double, bfloat16, half; CPU. A group of one
// rank returns the input.

/// Identity on a replicated tensor; the gradient is summed over the ranks. In front of a column-parallel layer.
at::Tensor copy_to_ranks(const at::Tensor& input, const Group& group);
/// The sum over the ranks; the gradient passes unchanged. After a row-parallel layer.
at::Tensor sum_over_ranks(const at::Tensor& input, const Group& group);
/// Joins the ranks' blocks of dimension `dim` in rank order; the gradient is this rank's block of the (equal) gradients.
at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim, const Group& group);
/// This rank's block of dimension `dim` of a replicated tensor; the gradients are joined. Error(kBadInput) where it does not divide.
at::Tensor slice_for_rank(const at::Tensor& input, int64_t dim, const Group& group);
/// Joins like gather_from_ranks; the gradient is the sum over ranks of this rank's block (each rank uses the result differently).
at::Tensor gather_with_sum(const at::Tensor& input, int64_t dim, const Group& group);
/// This rank's block of the sum over ranks; the gradients are joined.
at::Tensor sum_and_slice(const at::Tensor& input, int64_t dim, const Group& group);

/// Fault injection for `verify`: changes this process's terms of all sums above; empty: none. Call before any thread is started.
void change_summands(std::function<at::Tensor(const at::Tensor&)> change);

}  // namespace cohort
