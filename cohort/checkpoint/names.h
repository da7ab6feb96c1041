#pragma once
// The names inside RUN/checkpoints:
//   step-000000100                 a complete checkpoint; nine digits, more when the step needs them
//   step-000000100.tmp.<nonce>     being written, or left by a dead writer
//   step-000000100.old.<nonce>     replaced or being removed; complete as long as it has a manifest
//   latest, latest.tmp.<nonce>     a file of one line, the name of the last checkpoint, and its successor
//   best, best.tmp.<nonce>         likewise of the checkpoint with the lowest validation loss
//
// Older runs have symbolic links instead of the two files, and copies of these may have folders.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kWriterName = "writer.json";  ///< Identifies the writer of a .tmp folder.
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
/// Nullopt for any name that checkpoint_folder_name() does not make.
std::optional<CheckpointName> parse_checkpoint_folder_name(const std::string& text);

/// 1 to 64 letters, digits, '-' or '_'.
bool valid_nonce(const std::string& nonce);
/// At most 200 letters, digits, '.', '-', '_', not beginning with '.', ending in ".safetensors".
bool valid_shard_name(const std::string& name);
/// "rank-00000.safetensors".
std::string shard_name(int rank);

/// The name in the pointer file `path` (RUN/checkpoints/latest), or the target of a symbolic link; "" for anything else.
std::string read_pointer(const std::string& path);

/// Whether `path` is an exported model: a file, and not a (possibly damaged) pointer.
bool is_exported_file(const std::string& path);

/// Whether RUN/checkpoints contains any checkpoint, damaged or not, under any name. Error(kBadInput) where it cannot be read.
bool holds_checkpoint(const std::string& folder);

/// Names of the complete checkpoints of a folder, newest step first, final ones before .old ones. Empty where the folder does not exist;
/// Error(kBadInput) where it cannot be read.
std::vector<std::string> list_checkpoints(const std::string& folder);

}  // namespace cohort
