#pragma once
// What a pruning's training begins with, of a trained file. Torch-free.

#include <string>

#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// The specification of the model that is left without that part of the channels: smaller_specification() of the file's model, whose
/// channels are tried. Errors as it and take_channels() have them.
std::string smaller_model_of(const TrainedFile& file, const DataShape& shape, double sparsity);
/// Writes it, with the weights of the channels that stay, as a plain safetensors file. `samples`: some of the model's data.
void write_smaller_model(const TrainedFile& file, const DataDescription& trained, const DataSource& samples,
                         const std::string& specification, const std::string& out);

/// Error(kBadInput) where `how` ("weight:0.9", "2:4") finds nothing to prune in the file's model.
void check_has_matrices(const TrainedFile& file, const DataShape& shape, const std::string& how);

}  // namespace cohort
