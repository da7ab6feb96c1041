#pragma once
// A model with fewer channels, as the options of its family say it, with the weights of the channels that stay.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

class LayerGraph;

/// "cnn:width=0.5" and 0.5 -> "cnn:conv1=8,conv2=16,hidden=256": the options of the same family with that part of every width left out;
/// `model` is one of it, whose sizes are read. Error(kBadInput) for a family whose options can not say that, naming those that can, and for
/// widths so small that nothing goes.
std::string smaller_specification(const std::string& specification, const LayerGraph& model, double sparsity);

/// `smaller` (of a specification that smaller_specification() made, with weights of any values) gets the weights of `model`'s channels that
/// stay: of each group of channels that are one, as many as the smaller model has, those with the largest L2 norm of the filters that make
/// them, each times its batch norm's factor. `input`: a batch, for the shapes. Error(kBadInput) where the two are not of one another.
void take_channels(const LayerGraph& model, LayerGraph& smaller, const at::Tensor& input);

}  // namespace cohort
