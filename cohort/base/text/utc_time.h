#pragma once
// The time of day as files and messages write it.

#include <string>

namespace cohort {

/// Now, as 2026-01-31T12:00:00Z.
std::string utc_now();

}  // namespace cohort
