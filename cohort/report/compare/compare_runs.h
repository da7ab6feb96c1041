#pragma once
// A page that compares several runs: results, overlaid curves, when each reached the loss that all reached, and the settings that differ.
// For all layouts and synchronization modes. Torch-free.

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/report/run_reader.h"

namespace cohort::report {

/// The number of distinguishable lines on one plot.
inline constexpr size_t kMaxCompared = 10;

/// The samples and seconds of the first evaluation at which the validation loss was at most `level`. Seconds are those of the virtual clock
/// where the run had one, else the sum of step times, without evaluations and checkpoints.
struct Reached {
  double samples = kUnknown, seconds = kUnknown;
};
Reached first_reaching(const RunRecord& run, double level);

/// The loss that all runs reached: the highest of their lowest validation losses. Unknown where a run has no evaluation.
double common_level(const std::vector<RunRecord>& runs);

/// The page; `names` are the displayed names of the runs.
std::string comparison_page(const std::vector<RunRecord>& runs, const std::vector<std::string>& names);

/// Reads run folders (2 to kMaxCompared, all different) and writes the page by rename. Errors as write_report().
void write_comparison(const std::vector<std::string>& runs, const std::string& file);

}  // namespace cohort::report
