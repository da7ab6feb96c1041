#pragma once
// Writes report.html of a run folder: one self-contained file, for small screens too, light and dark. Torch-free.

#include <string>

namespace cohort::report {

/// Reads RUN/config.toml and RUN/metrics.jsonl (an incomplete last line is skipped), writes RUN/report.html by rename, and returns its
/// path. Error(kBadInput) with file and line for malformed files.
std::string write_report(const std::string& run);

}  // namespace cohort::report
