#pragma once
// The look of pages: style sheets, and small scripts that show values under the pointer. A page is complete without its script: every point
// has a title.

namespace cohort::report {

const char* report_style();
const char* report_script();
/// What the pages of studies add to it: series that differ in colour and shape, and a script that reads points out.
const char* study_style();
const char* study_script();

}  // namespace cohort::report
