#pragma once
// One file with the tensors of a model: written whole or not at all, with a checksum of its tensors among what its header says, and one of
// that header's text, so that what was changed on the way is noticed. Torch-free. Format: docs/formats/safetensors.md.

#include <map>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"

namespace cohort {

/// Key of "__metadata__": XXH3 (64 bits) of the tensors in the order of their names, 16 hexadecimal digits.
inline constexpr const char* kTensorsChecksum = "tensors_xxh3";

/// Likewise of the header's own text: of every other entry but kTensorsChecksum, in the order of their names.
inline constexpr const char* kTextChecksum = "text_xxh3";

/// `metadata` and both checksums.
std::map<std::string, std::string> with_checksums(const std::vector<TensorView>& tensors, std::map<std::string, std::string> metadata);

/// To a file beside `out` that then takes its name; returns the bytes. Error(kFailed) where it cannot be written; `out` is as before then.
int64_t write_model_file(const std::string& out, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata);

/// Error(kBadInput) where the header promises other tensors or another text than there are; files without the keys are taken as they are.
/// Reads all of it.
void check_tensors(const SafetensorsFile& file, const std::string& path);

}  // namespace cohort
