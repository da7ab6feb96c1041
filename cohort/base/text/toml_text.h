#pragma once
// Values as TOML writes them.

#include <string>
#include <string_view>

namespace cohort {

/// In double quotes, with escapes.
std::string toml_string(std::string_view text);

/// What toml_string() was given; text that is not in quotes as it is.
std::string text_of_toml(std::string_view value);

/// The shortest text that reads back as the same double, with a point or exponent so that TOML sees a float.
std::string toml_number(double value);

/// Before toml::parse(), whose recursion over dotted keys ends a process at some ten thousand dots. Error(kBadInput) FILE:LINE for a line
/// with more than `most_dots`.
void check_toml_dots(std::string_view text, const std::string& path, int most_dots = 1000);

}  // namespace cohort
