#pragma once
// Formats and reads TOML values.

#include <string>
#include <string_view>

namespace cohort {

/// Quotes and escapes a string.
std::string toml_string(std::string_view text);

/// The reverse of toml_string(); text without quotes is returned unchanged.
std::string text_of_toml(std::string_view value);

/// The shortest text that reads back as the same double, with a point or exponent so that TOML sees a float.
std::string toml_number(double value);

/// Guards toml::parse(), which overflows the stack on keys with ten thousand dots. Error(kBadInput) FILE:LINE for a line with more than
/// `most_dots`.
void check_toml_dots(std::string_view text, const std::string& path, int most_dots = 1000);

}  // namespace cohort
