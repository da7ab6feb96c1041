#pragma once
// What is removed after a checkpoint was committed, and the way in which a checkpoint leaves its name.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/checkpoint/io.h"

namespace cohort {

/// A temporary folder whose writer cannot be asked counts as dead when it is this much older than the checkpoint just committed.
inline constexpr int64_t kStaleSeconds = 3600;

/// Renames the checkpoint of `step` to "step-N.old.<nonce>" and returns that path; empty where there is none.
std::string set_aside(CheckpointIo& io, const std::string& folder, int64_t step, const std::string& nonce);

/// After `step` was committed to `folder` under `nonce`: removes what was set aside and is replaced, all checkpoints older than the newest
/// `keep` valid ones up to `step`, and the temporary folders of dead writers. Goes on after a failure; returns one line for each.
std::vector<std::string> remove_superseded(CheckpointIo& io, const std::string& folder, int64_t step, const std::string& nonce, int keep);

}  // namespace cohort
