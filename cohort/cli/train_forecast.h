#pragma once
// `cohort train`: where the forecast of the run is from, and where its error goes. Internal to this folder.

#include <optional>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/plan/profile/model_profile.h"
#include "cohort/run/train_job.h"
#include "cohort/world/world.h"

namespace cohort {

/// What --profile names, for at most `most_workers` ranks: read, or measured and written where it is not there. Nothing without the option.
/// Error(kBadInput) for a profile of something else, or that is not there under a launcher.
std::optional<ModelProfile> profile_of_run(const Arguments& arguments, const Config& config, int most_workers, const DataSet& data,
                                           const World& world);

/// Fills in options.forecast: --profile, else what --layout auto left there, else a plan.json that is the layout, else that of a run that
/// goes on. Error(kBadInput) for a --calibration without any of these.
void find_forecast(const Arguments& arguments, const Job& job, const World& world, const std::optional<ModelProfile>& profile,
                   TrainOptions& options);

}  // namespace cohort
