#pragma once
// Names of settings in messages: --global-batch for users of the command line, global_batch for programs that fill
// Config::global_batch. The source writes options; docs/adr/0025 says why.

#include <string>
#include <string_view>

namespace cohort {

/// `text` with each `--name` unchanged, or replaced by the member of Config (underscores), except in commands in back quotes. For literals
/// of the source only, not for what a user wrote.
std::string name_settings(std::string_view text);

/// Sets whether messages of this process and its forks name options (default: members). For the command line, before anything can fail.
void settings_are_options(bool are_options = true);

}  // namespace cohort
