#pragma once
// Measures what each layer of a model costs here: a Profile (plan/profile/profile.h).

#include <ATen/core/Tensor.h>

#include <functional>

#include "cohort/base/export.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/train/model/precision.h"

namespace cohort {

class LayerGraph;

struct ProfileOptions {
  int repeats = 5;  ///< Runs whose median counts, after one that warms up.
  Precision precision = Precision::kFp32;
  /// From the model's output; its time is a part of the last layer's. Empty: not counted.
  std::function<at::Tensor(const at::Tensor& output)> loss;
};

/// Runs forward and backward layer by layer on `input` (one micro-batch, at least one sample), in training mode, on the device that it lies
/// on. Weights, gradients, buffers, modes and LibTorch's generator stay as they are, also after an exception. The link's numbers are left
/// 0. How each number is measured: profile_layers.cpp. Not thread-safe; call it before hooks are set on the weights. Error(kBadInput).
COHORT_PROGRAM_API Profile profile_layers(LayerGraph& model, const at::Tensor& input, const ProfileOptions& options = {});

}  // namespace cohort
