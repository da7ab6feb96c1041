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
  Config config;         ///< The run's settings overridden by the options; for a new run the given configuration.
  Config before;         ///< The settings of its newest checkpoint.
  bool goes_on = false;  ///< Whether the run is resumed; else it is new.
  bool is_done = false;  ///< Nothing is left to do, and a message said so.
};

/// --resume. `folder` receives the run's folder in the process that holds it (rank 0, or without a launcher). Another rank may run on a
/// host that does not see the folder: then its own options count, and ranks compare their configurations anyway. Error(kBadInput) if there
/// is no such run.
RunToResume run_to_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder);

/// --resume=auto. Collective under a launcher: rank 0 looks at the folder, and all ranks get its result or its error.
RunToResume run_to_begin_or_resume(const Arguments& given, const World& world, std::unique_ptr<RunFolder>& folder);

// The forecast of the run: its source, and the file that keeps its error.

/// The profile of --profile for at most `most_workers` ranks: read, or measured and written if the file does not exist. Unset without the
/// option. Error(kBadInput) for a profile of another model or data, or a missing file under a launcher.
std::optional<ModelProfile> profile_of_run(const Arguments& arguments, const Config& config, int most_workers, const DataSet& data,
                                           const World& world);

/// Fills in options.forecast from --layout auto (which has set it), else --profile, else the plan file given as --layout, else the
/// plan.json of a resumed run. Error(kBadInput) for --calibration without any of these.
void find_forecast(const Arguments& arguments, const Job& job, const World& world, const std::optional<ModelProfile>& profile,
                   TrainOptions& options);

}  // namespace cohort
