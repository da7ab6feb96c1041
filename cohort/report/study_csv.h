#pragma once
// The points of plots as a table, one row a point.

#include <string>
#include <vector>

#include "cohort/report/study_chart.h"

namespace cohort::page {

/// Columns panel, series, x, y, low, high, then every field that a point of these panels has, in the order in which they first appear. Text
/// is quoted as RFC 4180 says; numbers read back exactly; what a point does not have is empty.
std::string plot_csv(const std::vector<StudyChart>& panels);

}  // namespace cohort::page
