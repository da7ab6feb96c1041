#pragma once
// Style sheets of pages, and scripts that show values under the pointer. Pages work without scripts: every point has a title.

namespace cohort::report {

const char* report_style();
const char* report_script();
/// Additions for StudyCharts: series that differ in colour and shape, and a script that shows the fields of points.
const char* study_style();
const char* study_script();

}  // namespace cohort::report
