#pragma once
// Writing a compressed model. Format: docs/formats/compressed.md.

#include <cstdint>
#include <map>
#include <string>

#include "cohort/compress/compressed_parts.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// What the header says: all that the source's export would, with `metadata` over it.
using FileMetadata = std::map<std::string, std::string>;
FileMetadata metadata_of_export(const TrainedFile& file);

/// Writes to a temporary name, then in the place of `out`; returns its bytes. Error(kFailed) where the system refuses; nothing is left
/// then.
int64_t write_compressed_file(const std::string& out, const CompressedParts& parts, FileMetadata metadata);
/// Bytes of the file that `cohort checkpoint export` would write of the model.
int64_t bytes_of_export(const LayerGraph& model, const FileMetadata& metadata);

}  // namespace cohort
