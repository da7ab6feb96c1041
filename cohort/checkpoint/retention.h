#pragma once
// Which checkpoints of a run are kept, and which one is chosen.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"

namespace cohort {

/// A temporary folder whose writer cannot be asked counts as dead when it is this much older than the checkpoint just committed.
inline constexpr int64_t kStaleSeconds = 3600;

/// Renames the checkpoint of `step` to "step-N.old.<nonce>" and returns that path; empty where there is none.
std::string set_aside(CheckpointIo& io, const std::string& folder, int64_t step, const std::string& nonce);

/// Before a job that owns `folder` begins: removes temporary folders and pointers of writers that are certainly dead.
void remove_unfinished(CheckpointIo& io, const std::string& folder);

struct Committed {
  int64_t step = 0;        ///< That was just committed.
  int keep = 2;            ///< Newest valid checkpoints up to it that stay.
  int64_t best_step = -1;  ///< That stays as well, however old it is; -1: none.
};

/// After a step was committed to `folder` under `nonce`: removes what was set aside and is replaced, all checkpoints that are older than
/// those which stay, and the temporary folders of dead writers. Goes on after a failure; returns one line for each.
std::vector<std::string> remove_superseded(CheckpointIo& io, const std::string& folder, const Committed& committed,
                                           const std::string& nonce);

// Which of the checkpoints of a run somebody means.

/// Step folders at or below `path` (a step folder, a folder of checkpoints, a run folder, or a link to one of these), newest first; never
/// empty. Error(kBadInput) where there is none.
std::vector<std::string> find_checkpoints(const std::string& path);

/// `which`: "latest", "best" (the lowest validation loss) or the number of a step; of a path that is one checkpoint "latest" alone. Every
/// byte is verified. Error(kBadInput) where there is none, with the steps that there are, and where it is damaged: another one in its place
/// would be another model.
Checkpoint open_chosen(const std::string& path, const std::string& which);

}  // namespace cohort
