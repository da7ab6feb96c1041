#pragma once
// Makes the batch norm layers of a model compute their statistics over the samples of all ranks, and warns where a batch is too small for
// batch norm.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"

namespace cohort {

/// From now on every torch::nn::BatchNorm1d/2d/3d inside `module` (or itself, where a shared_ptr owns it) takes its statistics over the
/// ranks of `group` while it trains; in eval mode nothing is exchanged. Returns how many layers that are. In place, whatever holds the
/// layers: Sequential, LayerGraph, members of a user's module; parameters, buffers and their names stay, so checkpoints load as before.
/// Calling it again replaces the group; a group of one rank turns the exchange off. A LayerGraph that could not be divided because of its
/// batch norm can be afterwards (sample_granularity 1). Ghost batch norm stays as it is.
///
/// What the training loop must do:
///  - every rank runs the same number of forward and backward passes a step, on ranks without samples with a tensor {0, ...} (the loss is
///    a sum, not a mean, over no samples: 0);
///  - the group is one of its own: a layer's exchange in backward and a bucket's sum may come in another order on another rank, and a
///    layer that waits in the gradients' group waits for the gradients before it too;
///  - with accumulation a statistic covers the micro-batches of the same number on all ranks. To equal one process that accumulates, divide
///    each global micro-batch over the ranks.
/// Layers are recognised by their tensors, so clone(), reset(), or new tensors for running_mean or weight make layers that are not
/// converted; convert again. LibTorch itself refuses {1, channels} (one value per channel) on a rank. Thread-safe. Not collective.
COHORT_API int convert_sync_batch_norm(torch::nn::Module& module, Group group);

/// Below this number of samples batch norm's statistics are too noisy. Wu & He 2018, "Group Normalization", table 2: ResNet-50 on ImageNet
/// has an error of 23.6 % with 32 samples a worker, 23.7 % with 16, 24.8 % with 8, 27.3 % with 4, 34.7 % with 2.
inline constexpr int64_t kFewSamples = 16;

/// How the samples of an optimizer step are used for statistics.
struct StatisticSamples {
  int64_t samples = 0;          ///< In one mean: a rank's micro-batch, all ranks' for converted layers, or the ghost batch.
  int64_t global_batch = 0;     ///< 0: unknown; the advice then has no numbers.
  int num_workers = 1;          ///< Replicas with statistics of their own.
  int num_micro_batches = 1;    ///< Per replica.
  double exchange_seconds = 0;  ///< One all-gather of a layer's statistics between the replicas; 0: unknown.
};

/// A warning where batch norm (ghost batch norm too) of `module` takes its statistics from too few samples, with the alternatives and their
/// costs. "" where it does not.
COHORT_API std::string small_batch_warning(const torch::nn::Module& module, const StatisticSamples& statistic);

}  // namespace cohort
