#pragma once
// `cohort train --resume` and `--resume=auto`: which run to resume, with which settings, and whether any work is left. Internal to
// this folder.

#include <memory>

#include "cohort/cli/options/verb.h"
#include "cohort/train/run_folder.h"
#include "cohort/world/world.h"

namespace cohort {

struct RunToResume {
  Config config;         ///< The run's own settings with the options over them; of a run that begins, what was given.
  Config before;         ///< What its newest checkpoint was trained with.
  bool goes_on = false;  ///< Else it begins.
  bool is_done = false;  ///< Nothing is left to do, and that was said.
};

/// --resume. `folder` receives the run's folder where this process has it (it is rank 0, or no rank). A rank of another launcher that is
/// not the first may be on a host that does not see it: then what it was started with counts, and ranks compare their configurations in any
/// case. Error(kBadInput) where there is no such run.
RunToResume run_to_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder);

/// --resume=auto. Collective under a launcher: rank 0 looks, and all do what it says; a refusal of its is everybody's.
RunToResume run_to_begin_or_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder);

}  // namespace cohort
