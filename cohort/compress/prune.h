#pragma once
// `cohort compress prune`: its request, the model that its fine-tuning begins with, and the pruned model beside the original. Torch-free.
//
// Pruning is spread over three places:
//   parallel/prune/smallest_weights   which weights of a tensor, possibly divided over ranks, are the smallest
//   train/model/pruner                masks those weights during training (--prune), by calling smallest_weights
//   compress/prune (here)             starts such a training for an existing model and writes what it left as a smaller file. Single
//                                     weights and 2:4: the training has --prune. Whole channels: the model is cut before (smaller_model)
//                                     and trains without a mask

#include <functional>
#include <string>

#include "cohort/compress/compression_result.h"
#include "cohort/compress/fine_tuning.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

struct PruneRequest {
  std::string granularity = "weight";  ///< "weight", "2:4" or "channel".
  double sparsity = 0.9;               ///< Fraction of the weights, or channels, to remove; 0.5 for 2:4.
  FineTuningRequest tuning;

  bool is_channel() const { return granularity == "channel"; }
  /// "weight:0.9", "2:4", "channel:0.5"
  std::string how() const;
};

/// Error(kBadInput) for an unknown granularity or a sparsity out of range.
void check_prune_request(const PruneRequest& request);

/// The specification of the file's model without that fraction of its channels. Errors as in smaller_specification().
std::string pruned_specification(const TrainedFile& file, const DataShape& shape, double sparsity);
/// Writes that model, with the weights of the channels that stay, as a safetensors file. `samples`: of the model's data. Errors as in
/// take_channels().
void write_smaller_model(const TrainedFile& file, const DataDescription& trained, const DataSource& samples,
                         const std::string& specification, const std::string& out);

/// Error(kBadInput) where `how` ("weight:0.9", "2:4") finds nothing to prune in the file's model.
void check_prunable(const TrainedFile& file, const DataShape& shape, const std::string& how);

/// Compares `pruned`, the result of the fine-tuning of `file`, with `file` and writes `out` (docs/formats/compressed.md), atomically and
/// only after all measurements: matrices without their zeros, or the smaller model. `progress` gets a line for each step. Errors as in
/// quantise().
CompressionResult write_pruned(const TrainedFile& file, const TrainedFile& pruned, const DataDescription& trained,
                               const DataSource& validation, const PruneRequest& request, const std::string& out,
                               const std::function<void(const std::string&)>& progress);

}  // namespace cohort
