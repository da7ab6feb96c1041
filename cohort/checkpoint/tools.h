#pragma once
// Implements `cohort checkpoint info|verify|export`. A path is a step folder, a folder of checkpoints (RUN/checkpoints) or a run folder
// (RUN); of several checkpoints the newest valid one is described or exported. Error(kBadInput) when there is none.

#include <cstdint>
#include <map>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

/// {"path", "step", "bytes", "state", "tensors":[{"name","dtype","shape","bytes","pieces"}], "files":[{"name","bytes","entries"}],
///  "checkpoints":[{"path","step","bytes","ok","error"?}]}. The first five are of the newest valid checkpoint; long values of the state are
///  abbreviated. Reads manifests and headers only, so `ok` means a valid structure.
Json checkpoint_info(const std::string& path);

/// {"path", "ok", "checkpoints":[{"path","step","bytes","tensors","files","ok","error"?}]}, newest first, with all checksums verified; and
/// "data" {"path","ok","error"?} if their run has a data.json. The top-level `ok`: all are valid.
Json checkpoint_verify(const std::string& path);

struct ExportOptions {
  /// Also writes a copy of the tensor for each name of state.aliases, so that load_state_dict finds every key.
  bool with_aliases = true;
  std::map<std::string, std::string> metadata = {};  ///< In addition to "format" and "step".
};
struct ExportResult {
  int64_t step = 0;
  int64_t num_tensors = 0;
  int64_t bytes = 0;
};
/// Atomically writes a safetensors file with the tensors "model/<name>" as <name>, and metadata {"format":"pt","step":"N"} and that of
/// `options`. Error(kFailed) on failure.
ExportResult checkpoint_export(const Checkpoint& checkpoint, const std::string& out_file, const ExportOptions& options = {});
/// Exports the newest valid checkpoint of `path` after verifying its data.
ExportResult checkpoint_export(const std::string& path, const std::string& out_file, const ExportOptions& options = {});
/// Error(kBadInput) for a file name without the ending .safetensors.
void check_export_name(const std::string& out_file);

}  // namespace cohort
