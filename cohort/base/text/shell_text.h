#pragma once
// Words of a command line.

#include <string>

namespace cohort {

/// `text` as one word for a POSIX shell: in single quotes where it needs them.
std::string shell_quoted(const std::string& text);

}  // namespace cohort
