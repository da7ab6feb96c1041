#pragma once
// Losses: those that --loss names, and those of a student that learns from a teacher.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

class LayerGraph;

// Losses that --loss names. Each is a mean over samples, so losses of parts of a batch, weighted by their samples, add up to that of the
// whole on every layout.
//
//   cross-entropy   of a softmax over the classes; for classes the one that is meant where nothing is said
//   mse             squared error: of a regression the one that is meant where nothing is said; of classes, of the scores against 1 for the
//                   right class and 0 for the others (Hui and Belkin 2021, "Evaluation of neural architectures trained with square loss")
//   binary          each score is a yes or no of its own, cross-entropy of a sigmoid, mean over the scores; of labels the one that is meant
//                   where nothing is said

/// Makes `model` train on the loss `name`; "auto" changes nothing. Error(kBadInput) for another name, for a loss that these data have no
/// targets for, and for a model that has a loss of its own.
void set_named_loss(LayerGraph& model, const std::string& name, const DataShape& data);

// The loss of a regression.

/// Mean of (output - target)^2 over all numbers, fp32. Error(kBadInput) where they are not as many.
at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target);

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

/// One number, fp32, or double of an output in double. Both of as many numbers, the target's floating-point. Error(kBadInput) where they
/// are not.
at::Tensor binary_cross_entropy(const at::Tensor& output, const at::Tensor& target);

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

/// One number. Both {..., classes}, of as many scores; fp32. No gradient goes to `teacher`. Error(kBadInput) naming both forms where they
/// are not as many.
at::Tensor soft_target_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature);

// How far what a student's layer looks at is from what its teacher's looks at.

/// One number, a mean over samples. Both {samples, channels, height, width} or {samples, positions, width}, of any channels or widths; maps
/// of different sizes are pooled to the smaller one. fp32 within. No gradient goes to `teacher`.
at::Tensor attention_distance(const at::Tensor& student, const at::Tensor& teacher);

/// Why two outputs of these sizes cannot be compared; "" where they can.
std::string why_no_attention(const std::vector<int64_t>& student, const std::vector<int64_t>& teacher);

}  // namespace cohort
