#pragma once
// The soft part of a student's loss: what it gives against what its teacher gives (Hinton, Vinyals and Dean 2015, "Distilling the knowledge
// in a neural network", arXiv 1503.02531, section 2). With scores divided by a temperature T a teacher's softmax says which wrong classes
// it takes for likely, and
//
//   soft = T min(T, 1) KL(softmax(teacher / T) || softmax(student / T)),   loss = (1 - alpha) usual + alpha soft
//
// The gradient of the divergence is (q - p) / T, q and p the two softmaxes, so that of the soft part is min(T, 1) (q - p): no larger than
// the cross-entropy's, q - (0 .. 1 .. 0), nor is its curvature. So a learning rate that suits the labels suits the teacher, at every T.
// (Hinton's factor is T^2, with which a teacher that is sure has T times the gradient of a label, and the rate has to fall by as much.)
// It is a mean over samples (of text: over positions), so losses of parts of a batch, weighted by their samples, add up to that of the
// whole.
//
// Cost: two softmaxes of the scores.

#include <ATen/core/Tensor.h>

namespace cohort {

/// One number. Both {..., classes}, of as many scores; fp32. No gradient goes to `teacher`. Error(kBadInput) naming both forms where they
/// are not as many.
at::Tensor soft_target_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature);

}  // namespace cohort
