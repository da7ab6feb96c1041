#pragma once
// Where a run comes from, so that somebody can make it again or go on with it: the command that was typed, the program's own name, and the
// commit of the folder that it was typed in.

#include <string>

namespace cohort {

/// This process's words, quoted for a shell; "" where the system does not tell.
std::string command_of_process();

/// "PROGRAM train RUN/config.toml --resume", with the name of the program that runs; for one whose main calls train() itself, what to set.
std::string resume_command(const std::string& run_folder);
/// "PROGRAM train RUN/config.toml --run RUN-again": the same training once more; "" for a program whose main calls train() itself.
std::string reproduce_command(const std::string& run_folder);

/// The commit that the git working tree around `folder` stands at, in hex digits; "" where there is none, or it cannot be read. Whether
/// files were changed since is not asked.
std::string commit_of(const std::string& folder);

}  // namespace cohort
