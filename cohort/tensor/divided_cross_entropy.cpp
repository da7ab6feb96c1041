// Cross-entropy of logits that are divided by classes, without joining them.
//
// For a row x of V logits with the target c: loss = log(sum over j of exp(x_j - m)) - (x_c - m), m = max over j of x_j.
// Steps: (1) each rank's maximum of its V / P logits; one all-reduce (max); (2) each rank's sum of exp(x_j - m), and x_c - m on the rank
// that has class c (0 elsewhere), in one all-reduce (sum) of both; (3) the loss, and its mean or sum over the rows, alike on every rank.
// Backward, local: (exp(x_j - m) / sum - [j = c]) * gradient / rows.
// Cost for R rows: two messages of 4 R and 8 R bytes, where joining the logits takes 4 R V (P - 1) / P; memory: one copy of the rank's
// logits. Source: Shoeybi et al. 2019, section 3 (fused cross-entropy). Where we differ: two exchanges instead of three.

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/tensor/shard_graph.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& logits, const at::Tensor& target, const Group& group) {
  const bool shapes_match = logits.dim() == target.dim() + 1 && logits.sizes().slice(0, logits.dim() - 1) == target.sizes();
  if (!logits.is_floating_point() || target.scalar_type() != at::kLong || !shapes_match) {
    fail(ErrorCode::kBadInput, "divided cross-entropy on rank ", group.rank(), ": logits {..., classes / ranks} of ", logits.scalar_type(),
         " ", logits.sizes(), " do not fit targets {...} of ", target.scalar_type(), " ", target.sizes(), " (int64 is needed)");
  }
}

/// Each row's target among this rank's classes.
struct OwnTargets {
  at::Tensor index;  ///< {rows, 1}; arbitrary where another rank has the class.
  at::Tensor own;    ///< {rows, 1}, bool
};

OwnTargets own_targets(const at::Tensor& target, int64_t num_local, const Group& group) {
  const int64_t num_classes = group.size() * num_local;
  if (target.numel() > 0) {
    const int64_t smallest = target.min().item<int64_t>(), largest = target.max().item<int64_t>();
    if (smallest < 0 || largest >= num_classes) {
      fail(ErrorCode::kBadInput, "divided cross-entropy: a target is class ", smallest < 0 ? smallest : largest, ", but the ", group.size(),
           " ranks have classes 0 to ", num_classes - 1);
    }
  }
  const at::Tensor local = target.reshape({-1, 1}) - group.rank() * num_local;
  return {local.clamp(0, num_local - 1), local.ge(0).logical_and_(local.lt(num_local))};
}

struct DividedCrossEntropy : torch::autograd::Function<DividedCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target, Group group, bool sum) {
    const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const int64_t num_local = logits.size(-1), num_rows = target.numel();
    const OwnTargets targets = own_targets(target, num_local, group);
    const at::Tensor rows = logits.reshape({num_rows, num_local}).to(type);
    at::Tensor maxima = rows.amax(/*dim=*/1, /*keepdim=*/true);
    group.all_reduce(maxima, Reduction::kMax, "the maxima of divided logits");
    at::Tensor exponentials = rows - maxima;
    // Row 0: sums of exponentials; row 1: the targets' logits, less the maximum.
    at::Tensor sums = at::empty({2, num_rows}, rows.options());
    sums[1].copy_(exponentials.gather(1, targets.index).masked_fill_(targets.own.logical_not(), 0.0).view({-1}));
    sums[0].copy_(exponentials.exp_().sum(1));
    group.all_reduce(sums, Reduction::kSum, "the sums of divided logits");
    const at::Tensor losses = sums[0].log() - sums[1];
    // This rank's part of the softmax over all classes.
    ctx->save_for_backward({exponentials.div_(sums[0].unsqueeze(1)), targets.index, targets.own});
    ctx->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    ctx->saved_data["shape"] = logits.sizes().vec();
    ctx->saved_data["sum"] = sum;
    return sum ? losses.sum() : losses.mean();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      fail(ErrorCode::kBadInput, "divided cross-entropy cannot be differentiated twice; call backward without create_graph");
    }
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &softmax = saved[0], &index = saved[1], &own = saved[2];
    const double rows = ctx->saved_data["sum"].toBool() ? 1.0 : static_cast<double>(std::max<int64_t>(1, softmax.size(0)));
    at::Tensor gradient = softmax.clone();  // backward may run again
    gradient.scatter_add_(1, index, own.to(gradient.scalar_type()).neg_());
    gradient.mul_(gradients[0] / rows);
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    return {gradient.reshape(ctx->saved_data["shape"].toIntVector()).to(type), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor divided_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const Group& group, bool sum) {
  check_arguments(logits, target, group);
  return DividedCrossEntropy::apply(logits, target, group, sum);
}

}  // namespace cohort
