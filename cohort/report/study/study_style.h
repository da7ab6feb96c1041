#pragma once
// What the pages of studies add to the look of the run report: series that differ in colour and shape, and a script that reads points out.
// The page is complete without the script: every point has a title.

#include <string>

namespace cohort::report {

const char* study_style();
const char* study_script();
/// The whole document with the report's style and this one, and this script alone.
std::string study_document(const std::string& title, const std::string& body);

}  // namespace cohort::report
