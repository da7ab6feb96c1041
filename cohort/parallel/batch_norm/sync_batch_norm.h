#pragma once
// Batch norm over the samples of all ranks together: the numbers of one process with the whole batch. Most programs want
// convert_sync_batch_norm.h, which converts the layers of a model.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/comm/group.h"

namespace cohort {

/// A layer that exchanges. `number` identifies it on all ranks and travels with each exchange, so that ranks in different layers are
/// reported instead of mixing their sums.
struct SyncBatchNormLayer {
  Group group;
  std::string name;
  int64_t number = 0;
};

/// The arguments of torch::batch_norm in training; absent tensors are undefined.
struct BatchNormArguments {
  at::Tensor weight, bias;               ///< {channels}
  at::Tensor running_mean, running_var;  ///< {channels}, updated in place; both or none.
  double momentum = 0.1;                 ///< Weight of the new value in the running statistics.
  double epsilon = 1e-5;
};

/// {samples, channels, ...} -> the same shape and type, normalised by mean and variance over the samples of all ranks. float, double, and
/// bfloat16 or half (statistics then in float). Ranks may have different numbers of samples, also none: they call it with {0, channels,
/// ...}, and run backward too. Collective, forward and backward: one exchange each (backward: only where `input` needs a gradient), so all
/// ranks run the same layers in the same order and equally often. The running statistics become the same bits on all ranks.
/// The gradients of weight and bias are those of this rank's samples: their sum over the ranks is the gradient, as for every other layer.
/// Tensors may be on a GPU; the sums (16 bytes a channel) are exchanged through CPU memory.
/// Error(kBadInput) on all ranks where the ranks are in different layers or have one value a channel in all; Error(kBadInput) from
/// backward(create_graph): no second derivatives.
at::Tensor sync_batch_norm(const at::Tensor& input, const BatchNormArguments& arguments, const SyncBatchNormLayer& layer);

}  // namespace cohort
