#pragma once
// Settings by the name that the user knows. Whoever types `--global-batch 128` is told of --global-batch; a program that fills
// Config::global_batch is told of global_batch. In messages they are written as options; docs/adr/0025 says why.

#include <string>
#include <string_view>

namespace cohort {

/// `text` with each `--name` in it as this process's user knows it: as it stands, or as the member, `name` with underscores. Commands in
/// back quotes stay what can be typed. For texts of the source alone: what a user wrote goes beside it, as it was written.
std::string name_settings(std::string_view text);

/// From here on settings of this process, and of those that it forks, are options (or members, as at first). For the command line, before
/// anything can fail.
void settings_are_options(bool are_options = true);

}  // namespace cohort
