#pragma once
// The names inside RUN/checkpoints:
//   step-000000100                 a complete checkpoint; nine digits, more when the step needs them
//   step-000000100.tmp.<nonce>     being written, or left over by a writer that died
//   step-000000100.old.<nonce>     replaced or being removed; complete as long as it has a manifest
//   latest, latest.tmp.<nonce>     a file of one line, the name of the one saved last, and its successor
//   best, best.tmp.<nonce>         likewise of the one with the lowest validation loss
//
// Runs of before have symbolic links in the place of the two files, and copies of those may have folders there.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kWriterName = "writer.json";  ///< Says which process writes a .tmp folder.
inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kBestName = "best";

struct CheckpointName {
  enum class Kind { kFinal, kTemporary, kAside };
  Kind kind = Kind::kFinal;
  int64_t step = 0;
  std::string nonce;  ///< Empty for kFinal.
};

/// "step-000000100", and with ".tmp.<nonce>" or ".old.<nonce>".
std::string checkpoint_folder_name(const CheckpointName& name);
/// Empty for any name that checkpoint_folder_name does not make.
std::optional<CheckpointName> parse_checkpoint_folder_name(const std::string& text);

/// 1 to 64 letters, digits, '-' or '_'.
bool valid_nonce(const std::string& nonce);
/// A name that stays in its folder: letters, digits, '.', '-', '_', at most 200, not beginning with '.', ending in ".safetensors".
bool valid_shard_name(const std::string& name);
/// "rank-00000.safetensors".
std::string shard_name(int rank);

/// The name that the pointer `path` (RUN/checkpoints/latest) holds, or the target of a symbolic link; "" where it is neither.
std::string read_pointer(const std::string& path);

/// Whether `path` is a file, and no pointer, damaged or not: then it is a model that was exported, and no checkpoint.
bool is_exported_file(const std::string& path);

/// Whether anything in RUN/checkpoints is a checkpoint, damaged or not, under whatever name: what is in the folder is looked at, and no
/// pointer asked. Error(kBadInput) where that cannot be known.
bool holds_checkpoint(const std::string& folder);

/// The complete checkpoints of a folder as names, newest step first, a final one before those set aside. Empty where the folder does not
/// exist; Error(kBadInput) where it cannot be read.
std::vector<std::string> list_checkpoints(const std::string& folder);

}  // namespace cohort
