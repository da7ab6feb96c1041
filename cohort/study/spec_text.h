#pragma once
// Numbers and strings as specs and fingerprints have them.

#include <string>
#include <string_view>

namespace cohort::study {

/// The shortest text that reads back as the same double: 0.1, 1e-05, 3.
std::string number_text(double value);
/// A TOML basic string, quotes included.
std::string toml_string(std::string_view text);

}  // namespace cohort::study
