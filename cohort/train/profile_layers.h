#pragma once
// Measures what each layer of a model costs here: a Profile (plan/profile.h).

#include <ATen/core/Tensor.h>

#include "cohort/models/layer_graph.h"
#include "cohort/plan/profile.h"
#include "cohort/train/precision.h"

namespace cohort {

struct ProfileOptions {
  int repeats = 5;  ///< Medians of so many runs, after one that warms up.
  Precision precision = Precision::kFp32;
};

/// Runs forward and backward layer by layer on `input` (one micro-batch). Weights, gradients, buffers and the mode (train, eval) stay as
/// they are. The link's numbers are left 0.
Profile profile_layers(LayerGraph& model, const at::Tensor& input, const ProfileOptions& options = {});

}  // namespace cohort
