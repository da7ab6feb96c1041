#pragma once
// Error feedback: what a compressor leaves out of one step it adds to the next.
//
// Definitions: g the gradient of this rank, e its residual (zero at first), c() the lossy code. A step sends c(x) of x = g + e and keeps
// e = x - c(x). So after any number of steps, whatever c() is:
//   sum of what was applied + sum over ranks of e = sum of all gradients of all ranks      (but for the rounding of float additions)
// and the mean of what was applied over T steps differs from the mean gradient by |e| / T.
// Source: Seide et al. 2014 (1-bit SGD, section 3.2); Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD", algorithm 2).
//
// A residual is in the units of its gradients, so gradients come here without a loss scale: that changes while a run goes on.
// Infinite and NaN gradients are passed on, so that every rank sees them and skips the step, with residuals as before it
// (CompressorBackup). Where nobody restores them the residual restarts from zero there, because an infinite one would never go away.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {

/// The residual of one buffer on one rank.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(int64_t num_elements) : residual_(at::zeros({num_elements}, at::kFloat)) {}

  int64_t num_elements() const { return residual_.numel(); }
  float* data() { return residual_.data_ptr<float>(); }
  const at::Tensor& residual() const { return residual_; }
  /// What a checkpoint keeps of it.
  std::pair<std::string, at::Tensor> state() { return {"residual", residual_}; }

  /// The memory of `flat` when it is what this residual belongs to, else Error(kBadInput) with `what`.
  float* gradients(const at::Tensor& flat, const std::string& what) const {
    if (flat.dim() != 1 || !flat.is_contiguous() || flat.scalar_type() != at::kFloat || flat.numel() != num_elements())
      fail(ErrorCode::kBadInput, "compressed exchange of ", what, ": got ", flat.sizes(), " of ", flat.scalar_type(), ", expected ",
           num_elements(), " contiguous floats; exchange buffers of other types without compression");
    return flat.data_ptr<float>();
  }

 private:
  at::Tensor residual_;
};

}  // namespace cohort
