#pragma once
// Measures the time and memory of each layer of a model: a Profile (plan/profile/profile.h).

#include <ATen/core/Tensor.h>

#include <functional>

#include "cohort/base/export.h"
#include "cohort/plan/profile/profile.h"
#include "cohort/train/model/precision.h"

namespace cohort {

class LayerGraph;

struct ProfileOptions {
  int repeats = 5;  ///< Runs, of which the median is used, after one warm-up.
  Precision precision = Precision::kFp32;
  /// Its time is added to the last layer's. Empty: not measured.
  std::function<at::Tensor(const at::Tensor& output)> loss;
};

/// Runs forward and backward layer by layer on `input` (one micro-batch, at least one sample), in training mode, on the input's device.
/// Weights, gradients, buffers, modes and LibTorch's generator are restored, also after an exception. The numbers of the link are 0. Not
/// thread-safe; call it before hooks are set on the weights. Error(kBadInput).
COHORT_PROGRAM_API Profile profile_layers(LayerGraph& model, const at::Tensor& input, const ProfileOptions& options = {});

}  // namespace cohort
