#pragma once
// What `cohort plan` does without --cluster: this machine is measured. Internal to this folder.

#include <string>
#include <vector>

#include "cohort/cli/verb.h"
#include "cohort/plan/joint/search_machines.h"

namespace cohort {

/// The model of --model on the data of --data, with 1, 2, 4, ... and --workers ranks (left out: a rank a core, 8 at most). What was
/// measured is kept where --profile names a file, and taken from there the next time; Error(kBadInput) where that is of something else.
ModelProfile profile_of_this_machine(const Arguments& arguments);

/// Of those that the profile was measured on, with at most `most_workers` (0: any number); the first where none is so small.
const Cluster& largest_machine(const ModelProfile& profile, int most_workers);

/// What the best plan of each number of workers is worth; none where there is one number.
std::vector<std::string> machine_sentences(const MachineAnswer& found);

}  // namespace cohort
