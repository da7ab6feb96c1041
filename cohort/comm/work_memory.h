#pragma once
// The memory of a call that c10d starts: what it reads and writes, kept alive with its work and delivered into the caller's tensors.

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/comm/collective_work.h"

namespace cohort {

/// A call whose result takes the place of `tensor`; without one (`writes`) it only reads.
void in_place(CollectiveWork& work, Op op, const at::Tensor& tensor, bool writes);

/// Where the call writes: one tensor, or one after the other. What it gives back is the plain memory behind them.
at::Tensor writes(CollectiveWork& work, const at::Tensor& tensor);
at::Tensor writes(CollectiveWork& work, const std::vector<at::Tensor>& tensors);

/// What the call reads, given the memory that it writes (or undefined): a copy where the two overlap, unless `memory` is the place of
/// `rank` in an all-gather. Comes after the op is set.
void reads(CollectiveWork& work, at::Tensor memory, const at::Tensor& output, int rank);

}  // namespace cohort
