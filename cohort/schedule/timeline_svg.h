#pragma once
// The chart of a timeline whose times are seconds; timeline_svg() of simulate.h has no unit.

#include <string>

#include "cohort/schedule/simulate.h"

namespace cohort {

/// As timeline_svg(), with times in milliseconds, and their unit beside them.
std::string timeline_svg_of_seconds(const Timeline& timeline);

}  // namespace cohort
