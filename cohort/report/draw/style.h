#pragma once
// The look of the report: its style sheet, and the small script that shows values under the pointer. The page is complete without the
// script.

namespace cohort::report {

const char* report_style();
const char* report_script();

}  // namespace cohort::report
