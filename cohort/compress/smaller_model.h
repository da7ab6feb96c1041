#pragma once
// Channel pruning: a model with fewer channels, expressed by the options of its family, with the weights of the channels that stay.

#include <ATen/core/Tensor.h>

#include <string>

namespace cohort {

class LayerGraph;

/// "cnn:width=0.5" and 0.5 -> "cnn:conv1=8,conv2=16,hidden=256": the same family with that fraction of every width removed. `model` is of
/// this specification; its sizes are read. Error(kBadInput) for a family whose options cannot express the result, naming those that can,
/// and for widths so small that nothing is removed.
std::string smaller_specification(const std::string& specification, const LayerGraph& model, double sparsity);

/// Fills `smaller` (built from a specification that smaller_specification() returned) with the weights of the channels of `model` that
/// stay. `input`: a batch, for the shapes. Error(kBadInput) where the two models do not belong together.
void take_channels(const LayerGraph& model, LayerGraph& smaller, const at::Tensor& input);

}  // namespace cohort
