#pragma once
// The loss of labels, of which any number is right for a sample: each is a yes or no of its own. With a score x (the logarithm of the odds)
// and a target t, 0 or 1,
//
//   loss = max(x, 0) - t x + log(1 + exp(-|x|)),   the mean over samples and labels,
//
// which is -log of the probability that sigmoid(x) gives to the target, and overflows for no score. Losses of parts of a batch, weighted by
// their samples, add up to that of the whole.
//
// Cost: one pass over the scores, and one in backward.
//
// Where we differ: init2winit, the program of the batch-size study's authors, adds labels up and takes the mean over samples alone. That
// is this loss times the number of labels, so plain SGD makes their steps with their learning rate times that number.

#include <ATen/core/Tensor.h>

namespace cohort {

/// One number, fp32, or double of an output in double. Both of as many numbers, the target's floating-point. Error(kBadInput) where they
/// are not.
at::Tensor binary_cross_entropy(const at::Tensor& output, const at::Tensor& target);

}  // namespace cohort
