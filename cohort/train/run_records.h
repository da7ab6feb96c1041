#pragma once
// What a run is and where it comes from, and what each of its ranks has and did, as lines of metrics.jsonl.

#include <string>

#include "cohort/record/end_records.h"
#include "cohort/record/start_records.h"
#include "cohort/train/run_setup.h"

namespace cohort {

// So that somebody can make the run again or go on with it: the command that was typed, the program's own name, the commit of the folder
// that it was typed in.

/// This process's words, quoted for a shell; "" where the system does not tell.
std::string command_of_process();

/// "PROGRAM train RUN/config.toml --resume", with the name of the program that runs; for one whose main calls train() itself, what to set.
std::string resume_command(const std::string& run_folder);
/// "PROGRAM train RUN/config.toml --run RUN-again": the same training once more; "" for a program whose main calls train() itself.
std::string reproduce_command(const std::string& run_folder);

/// The commit that the git working tree around `folder` stands at, in hex digits; "" where there is none, or it cannot be read. Whether
/// files were changed since is not asked.
std::string commit_of(const std::string& folder);

StartRecord start_record(const RunSetup& run);

/// Of this rank: `totals`, its samples and seconds, with its place, its memory and its part of the model.
RankRecord rank_record(const RunSetup& run, const RankRecord& totals);
/// `mine` of every rank, in rank order. Collective.
RanksRecord gather_ranks(Group& group, const RankRecord& mine);

}  // namespace cohort
