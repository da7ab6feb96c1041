#pragma once
// Losses: those that --loss names, and those of a student that learns from a teacher. Each is a mean over samples, so losses of parts of a
// batch, weighted by their samples, add up to that of the batch on every layout. Formulas and sources: losses.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"

namespace cohort {

class LayerGraph;

/// Sets the loss of `model`; `name`: cross-entropy, mse, binary, or "auto", which changes nothing. Error(kBadInput) for another name, for a
/// loss that these data have no targets for, and for a model that has a loss of its own.
void set_named_loss(LayerGraph& model, const std::string& name, const DataShape& data);

/// Loss of a regression: mean of (output - target)^2 over all numbers, fp32. Error(kBadInput) where their numbers of elements differ.
at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target);

/// Loss of labels. One number, fp32, or double for an output in double; `target` is floating-point. Error(kBadInput) where their numbers of
/// elements differ.
at::Tensor binary_cross_entropy(const at::Tensor& output, const at::Tensor& target);

/// Soft part of a student's loss. One number, fp32; both {..., classes} with as many elements. `teacher` gets no gradient. Error(kBadInput)
/// with both shapes where their numbers of elements differ.
at::Tensor soft_target_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature);

/// Distance between the attention maps of a student's layer and of its teacher's. One number, computed in fp32. Both {samples, channels,
/// height, width} or {samples, positions, width}, with any channels or widths; maps of different sizes are pooled to the smaller one.
/// `teacher` gets no gradient.
at::Tensor attention_distance(const at::Tensor& student, const at::Tensor& teacher);

/// Why two outputs of these sizes cannot be compared; "" where they can.
std::string attention_mismatch(const std::vector<int64_t>& student, const std::vector<int64_t>& teacher);

}  // namespace cohort
