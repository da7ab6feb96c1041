#pragma once
// `cohort compress prune`: what it was asked for, what its training begins with, and the pruned model beside the one that it came from.
// Torch-free.

#include <functional>
#include <string>

#include "cohort/compress/compression_result.h"
#include "cohort/compress/fine_tuning.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

// What `cohort compress prune` was asked for. Torch-free.

struct PruneRequest {
  std::string granularity = "weight";  ///< "weight", "2:4" or "channel".
  double sparsity = 0.9;               ///< Part of the weights, or channels, that goes; 0.5 for 2:4.
  FineTuningRequest tuning;

  bool is_channel() const { return granularity == "channel"; }
  /// "weight:0.9", "2:4", "channel:0.5"
  std::string how() const;
};

/// Error(kBadInput) for a granularity or sparsity that is none.
void check_prune_request(const PruneRequest& request);
/// Error(kBadInput) for a file whose weights are codes.
void check_can_be_pruned(const TrainedFile& file);

// What a pruning's training begins with, of a trained file. Torch-free.

/// The specification of the model that is left without that part of the channels: smaller_specification() of the file's model, whose
/// channels are tried. Errors as it and take_channels() have them.
std::string smaller_model_of(const TrainedFile& file, const DataShape& shape, double sparsity);
/// Writes it, with the weights of the channels that stay, as a plain safetensors file. `samples`: some of the model's data.
void write_smaller_model(const TrainedFile& file, const DataDescription& trained, const DataSource& samples,
                         const std::string& specification, const std::string& out);

/// Error(kBadInput) where `how` ("weight:0.9", "2:4") finds nothing to prune in the file's model.
void check_has_matrices(const TrainedFile& file, const DataShape& shape, const std::string& how);

// A pruned model beside the one that it came from: what was done, what it cost, and the file.

/// `pruned`: what the fine-tuning of `file` left. Writes `out` (docs/formats/compressed.md), in one piece and only when all is measured:
/// matrices without their zeros, or the smaller model. `progress` is told what is done now. Errors as quantise() has them.
CompressionResult write_pruned(const TrainedFile& file, const TrainedFile& pruned, const DataDescription& trained,
                               const DataSource& validation, const PruneRequest& request, const std::string& out,
                               const std::function<void(const std::string&)>& progress);

}  // namespace cohort
