#pragma once
// What an exported file says of itself in its header, beside {"format": "pt", "step": "N"}: all that is needed to use it. Torch-free.
// Format: docs/formats/safetensors.md.

#include <map>
#include <string>

#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

class TrainedFile;

/// Keys of "__metadata__". Values are text; those of the second line are JSON.
namespace exported {
inline constexpr const char *kStep = "step", *kModel = "model", *kConfig = "config", *kPrecision = "precision", *kVersion = "cohort",
                            *kFingerprint = "data_fingerprint";
inline constexpr const char *kData = "data", *kValLoss = "val_loss", *kValError = "val_error", *kEvaluation = "evaluation",
                            *kCompressed = "compressed";
}  // namespace exported

/// Of a checkpoint that `cohort train` wrote; empty for one of a loop of one's own, which does not say what its model is. Where the run
/// kept no description of its data these are opened; where that fails a warning says what the file will lack.
std::map<std::string, std::string> exported_metadata(const Checkpoint& checkpoint);
/// The same of one that is open, or of an exported file.
std::map<std::string, std::string> exported_metadata(const TrainedFile& file);

}  // namespace cohort
