#pragma once
// Completion for shells, from the table of verbs. Internal to the command line.

#include <map>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Settings whose values are a few words, and those words.
const std::map<std::string, std::vector<std::string>>& setting_choices();

/// A script for bash, zsh or fish. Error(kBadInput) for another shell.
std::string completion_script(const std::string& shell, const std::vector<Verb>& verbs);

}  // namespace cohort
