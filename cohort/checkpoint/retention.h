#pragma once
// Retention of checkpoints, and the choice of one of a run.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"

namespace cohort {

/// A temporary folder of an unknown writer is stale when it is this much older than the committed checkpoint.
inline constexpr int64_t kStaleSeconds = 3600;

/// Renames the checkpoint of `step` to "step-N.old.<nonce>" and returns that path; "" if there is none.
std::string set_aside(CheckpointIo& io, const std::string& folder, int64_t step, const std::string& nonce);

/// Removes temporary folders and pointers of certainly dead writers, before a job begins that owns `folder`.
void remove_unfinished(CheckpointIo& io, const std::string& folder);

struct Committed {
  int64_t step = 0;        ///< The committed step.
  int keep = 2;            ///< Number of newest valid checkpoints up to it to keep.
  int64_t best_step = -1;  ///< Kept as well; -1: none.
};

/// Removes superseded and old checkpoints and temporary folders of dead writers after a commit to `folder`. Continues after failures and
/// returns one line for each.
std::vector<std::string> remove_superseded(CheckpointIo& io, const std::string& folder, const Committed& committed,
                                           const std::string& nonce);

/// Step folders at or below `path` (a step folder, a folder of checkpoints, a run folder, or a link to one), newest first; never empty.
/// Error(kBadInput) if there is none.
std::vector<std::string> find_checkpoints(const std::string& path);

/// Opens and verifies a checkpoint. `which`: "latest", "best" (the lowest validation loss) or a step; only "latest" if `path` is a single
/// checkpoint. Error(kBadInput) with the existing steps if there is none, and if it is damaged, without falling back to another one.
Checkpoint open_selected_checkpoint(const std::string& path, const std::string& which);

}  // namespace cohort
