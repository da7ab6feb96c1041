#pragma once
// The parts of `cohort train` that have files of their own. Internal to this folder.

#include <memory>
#include <optional>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/plan/profile/model_profile.h"
#include "cohort/run/train_job.h"
#include "cohort/train/run_folder.h"
#include "cohort/world/world.h"

namespace cohort {

// --resume and --resume=auto: which run to resume, with which settings, and whether any work is left.

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

// The forecast of the run: where it is from, and where its error goes.

/// What --profile names, for at most `most_workers` ranks: read, or measured and written where it is not there. Nothing without the option.
/// Error(kBadInput) for a profile of something else, or that is not there under a launcher.
std::optional<ModelProfile> profile_of_run(const Arguments& arguments, const Config& config, int most_workers, const DataSet& data,
                                           const World& world);

/// Fills in options.forecast: --profile, else what --layout auto left there, else a plan.json that is the layout, else that of a run that
/// goes on. Error(kBadInput) for a --calibration without any of these.
void find_forecast(const Arguments& arguments, const Job& job, const World& world, const std::optional<ModelProfile>& profile,
                   TrainOptions& options);

}  // namespace cohort
