#pragma once
// Reads a run folder, writes its report.html: one file, no network, readable on a phone, light and dark. Torch-free.

#include <string>

namespace cohort::report {

/// Reads RUN/config.toml and RUN/metrics.jsonl (a truncated last line, as a kill leaves it, is skipped), writes RUN/report.html by rename.
/// Returns its path. Error(kBadInput) naming file and line where something is not what it should be.
std::string write_report(const std::string& run);

}  // namespace cohort::report
