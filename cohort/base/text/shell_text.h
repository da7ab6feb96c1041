#pragma once
// Words of a command line.

#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// `text` as one word for a POSIX shell: in single quotes where it needs them.
COHORT_PROGRAM_API std::string shell_quoted(const std::string& text);

}  // namespace cohort
