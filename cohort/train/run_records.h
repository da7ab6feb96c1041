#pragma once
// Records of a run's start and of its ranks, and the commands that resume and reproduce it.

#include <string>

#include "cohort/record/end_records.h"
#include "cohort/record/start_records.h"
#include "cohort/train/run_setup.h"

namespace cohort {

/// The command line of this process, quoted for a shell; "" if it is unknown.
std::string command_of_process();

/// "PROGRAM train RUN/config.toml --resume"; for a program whose main() calls train() itself the settings that resume.
std::string resume_command(const std::string& run_folder);
/// "PROGRAM train RUN/config.toml --run RUN-again"; "" for a program whose main() calls train() itself.
std::string reproduce_command(const std::string& run_folder);

/// The commit of the git working tree around `folder`, in hex digits; "" if there is none. Changed files are not considered.
std::string commit_of(const std::string& folder);

StartRecord start_record(const RunSetup& run);

/// Adds this rank's host, memory and part of the model to its `totals` of samples and seconds.
RankRecord rank_record(const RunSetup& run, const RankRecord& totals);
/// The records of all ranks, in rank order. Collective.
RanksRecord gather_ranks(Group& group, const RankRecord& mine);

}  // namespace cohort
