#pragma once
// Values as TOML writes them.

#include <string>
#include <string_view>

namespace cohort {

/// In double quotes, with escapes.
std::string toml_string(std::string_view text);

/// Before toml::parse(), whose recursion over dotted keys ends a process at some ten thousand dots. Error(kBadInput) FILE:LINE for a line
/// with more than `most_dots`.
void check_toml_dots(std::string_view text, const std::string& path, int most_dots = 1000);

}  // namespace cohort
