#pragma once
// How much does a training amplify rounding? Its initial weights move a little.

#include <torch/nn/module.h>

namespace cohort {

/// Every third weight goes up by `unit` of itself, the others down.
void nudge_weights(torch::nn::Module& model, double unit);

}  // namespace cohort
