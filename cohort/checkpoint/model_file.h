#pragma once
// A safetensors file of a model, written atomically, with checksums of its tensors and of its metadata in the header. Torch-free. Format:
// docs/formats/safetensors.md.

#include <map>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"

namespace cohort {

/// Key of "__metadata__": XXH3 (64 bits) of the tensors in the order of their names, 16 hexadecimal digits.
inline constexpr const char* kTensorsChecksum = "tensors_xxh3";

/// Likewise of all other entries of "__metadata__" but kTensorsChecksum.
inline constexpr const char* kTextChecksum = "text_xxh3";

/// `metadata` with both checksums.
std::map<std::string, std::string> with_checksums(const std::vector<TensorView>& tensors, std::map<std::string, std::string> metadata);

/// Writes `out` atomically; returns its size in bytes. Error(kFailed), with `out` unchanged, on failure.
int64_t write_model_file(const std::string& out, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata);

/// Verifies the checksums, if present, reading all data. Error(kBadInput) for a mismatch.
void check_tensors(const SafetensorsFile& file, const std::string& path);

}  // namespace cohort
