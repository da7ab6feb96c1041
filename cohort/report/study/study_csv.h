#pragma once
// The points of plots as CSV, one row per point.

#include <string>
#include <vector>

#include "cohort/report/draw/chart.h"

namespace cohort::report {

/// Columns panel, series, x, y, low, high (the point and its bar as drawn), then all fields of points in the order of first appearance;
/// column names are unique. Text is quoted according to RFC 4180; numbers read back exactly; missing fields are empty.
std::string plot_csv(const std::vector<StudyChart>& panels);

/// Removes the CSVs of an earlier report from `folder`: files with the name of a figure and the columns of plot_csv(), except `kept`
/// (paths). Other files are not touched.
void remove_old_plots(const std::string& folder, const std::vector<std::string>& kept);
/// The names of all figures that a report may have, without ".csv".
const std::vector<std::string>& figure_names();
/// Whether the name is one of those, or that of a further study: "fig1_steps", "fig1_steps-2-quick2".
bool is_figure_name(const std::string& name);

}  // namespace cohort::report
