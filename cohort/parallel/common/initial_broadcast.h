#pragma once
// Every rank starts with rank 0's model.

#include <torch/nn/module.h>

#include "cohort/comm/group.h"

namespace cohort {

/// Collective: parameters (frozen ones too) and buffers of any type get rank 0's values.
void broadcast_model(const torch::nn::Module& module, Group& group);

}  // namespace cohort
