#pragma once
// What `cohort checkpoint info|verify|export` do. A path is a step folder, a folder of checkpoints (RUN/checkpoints) or a run folder (RUN);
// where there are several checkpoints the newest valid one is described or exported. Error(kBadInput) when there is none.

#include <cstdint>
#include <map>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

/// {"path", "step", "bytes", "state", "tensors":[{"name","dtype","shape","bytes","pieces"}], "files":[{"name","bytes","entries"}],
///  "checkpoints":[{"path","step","bytes","ok","error"?}]}. The first five are of the newest valid checkpoint; long values of the state are
///  cut.
/// Reads manifests and headers, not the data: `ok` here means that the structure is right.
Json checkpoint_info(const std::string& path);

/// {"path", "ok", "checkpoints":[{"path","step","bytes","tensors","files","ok","error"?}]}, newest first, every byte compared with its
/// checksum; and "data" {"path","ok","error"?}, where their run has a data.json. `ok` at the top: all of them are.
Json checkpoint_verify(const std::string& path);

struct ExportOptions {
  /// Also writes each name of state.aliases, as a full copy of the tensor it stands for, so that load_state_dict finds every key.
  bool with_aliases = true;
  std::map<std::string, std::string> metadata = {};  ///< Beside "format" and "step".
};
struct ExportResult {
  int64_t step = 0;
  int64_t num_tensors = 0;
  int64_t bytes = 0;
};
/// One plain safetensors file with the tensors "model/<name>" under <name>, metadata {"format":"pt","step":"N"} and what `options` add.
/// Written beside `out_file` and renamed over it; a failure (Error(kFailed)) leaves what was there.
ExportResult checkpoint_export(const Checkpoint& checkpoint, const std::string& out_file, const ExportOptions& options = {});
/// Of the newest valid one, whose data is verified first.
ExportResult checkpoint_export(const std::string& path, const std::string& out_file, const ExportOptions& options = {});
/// Error(kBadInput) for a name whose ending promises another format, or none.
void check_export_name(const std::string& out_file);

}  // namespace cohort
