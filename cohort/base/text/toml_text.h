#pragma once
// Values as TOML writes them.

#include <string>
#include <string_view>

namespace cohort {

/// In double quotes, with escapes.
std::string toml_string(std::string_view text);

}  // namespace cohort
