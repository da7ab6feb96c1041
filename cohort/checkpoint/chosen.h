#pragma once
// Which of the checkpoints of a run somebody means.

#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

/// Step folders at or below `path` (a step folder, a folder of checkpoints, a run folder, or a link to one of these), newest first; never
/// empty. Error(kBadInput) where there is none.
std::vector<std::string> find_checkpoints(const std::string& path);

/// `which`: "latest", "best" (the lowest validation loss) or the number of a step; of a path that is one checkpoint "latest" alone. Every
/// byte is verified. Error(kBadInput) where there is none, with the steps that there are, and where it is damaged: another one in its place
/// would be another model.
Checkpoint open_chosen(const std::string& path, const std::string& which);

}  // namespace cohort
