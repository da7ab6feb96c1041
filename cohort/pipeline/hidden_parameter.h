#pragma once
// Weights that a module uses and another rank owns.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace cohort {

/// By its dotted name. Error(kBadInput) where there is none.
at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name);
/// Takes the parameter out of the module's list (parameters() no longer shows it), while the layer goes on using it: it becomes a leaf with
/// values of its own. Returns it.
at::Tensor hide_parameter(torch::nn::Module& module, const std::string& name);

}  // namespace cohort
