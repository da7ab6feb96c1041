#pragma once
// The points of plots as a table, one row a point.

#include <string>
#include <vector>

#include "cohort/report/draw/chart.h"

namespace cohort::report {

/// Columns panel, series, x, y, low, high (the point and its bar as drawn), then every field that a point of these panels has, in the order
/// in which they first appear; no two columns have one name. Text is quoted as RFC 4180 says; numbers read back exactly; what a point does
/// not have is empty.
std::string plot_csv(const std::vector<StudyChart>& panels);

/// Removes from `folder` the CSVs of an earlier report that this one did not write: files with the name of a figure and the columns of
/// plot_csv, but for `kept` (paths). All else is somebody's own and stays.
void remove_old_plots(const std::string& folder, const std::vector<std::string>& kept);
/// Of every figure that a report may have, without ".csv".
const std::vector<std::string>& figure_names();
/// One of those, or of a further study (suffix_of() in study_page.cpp): "fig1_steps", "fig1_steps-2-quick2".
bool is_figure_name(const std::string& name);

}  // namespace cohort::report
