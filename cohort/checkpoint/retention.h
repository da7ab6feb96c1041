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

}  // namespace cohort
