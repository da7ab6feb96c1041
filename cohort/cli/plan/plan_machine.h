#pragma once
// What `cohort plan` does without --cluster: this machine is measured. Internal to this folder.

#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// The model of --model on the data of --data, with 1, 2, 4, ... and --workers ranks (left out: a rank a core, 8 at most). What was
/// measured is kept where --profile names a file, and taken from there the next time; Error(kBadInput) where that is of something else.
ModelProfile profile_of_this_machine(const Arguments& arguments);

/// Of those that the profile was measured on, with at most `most_workers` (0: any number); the first where none is so small.
const Cluster& largest_machine(const ModelProfile& profile, int most_workers);
/// What a measurement of this machine that is to be kept in a file is of.
struct KeptMeasurement {
  int workers = 1;  ///< At most: 1, 2, 4, ... and these.
  std::vector<std::string> precisions;
  std::string path;  ///< "": it is not kept.
};
/// Measures config's model on `data`, and writes the profile.
ModelProfile measure_and_keep(const Config& config, const DataSet& data, const KeptMeasurement& what);
/// Error(kBadInput) where the profile of --profile `path` says that it was measured for another model, data or size of samples than
/// config's.
void check_measured_source(const ModelProfile& profile, const Config& config, const std::string& path);

/// What forecasts for this machine were off by, as --calibration says; nothing with --cluster. Error(kBadInput) for both.
ForecastIntervals kept_intervals_of(const Arguments& arguments, const ModelProfile& profile);

/// What the best plan of each number of workers is worth; none where there is one number.
std::vector<std::string> machine_sentences(const MachineAnswer& found);

}  // namespace cohort
