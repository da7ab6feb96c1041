#pragma once
// What is looked at before a model is compressed. Torch-free.

#include <string>

#include "cohort/infer/trained_file.h"

namespace cohort {

/// Error(kBadInput) for a name that promises another format than safetensors, and for a place that can not be written to.
void check_compressed_name(const std::string& out);

/// Error(kBadInput) where `out` is `file` itself, which would be lost.
void check_is_another(const TrainedFile& file, const std::string& out);

/// Error(kBadInput) for a file whose weights are codes already (one whose zeros alone were left out is as good as its run).
void check_not_compressed(const TrainedFile& file);

}  // namespace cohort
