#pragma once
// Several runs side by side on one page: what each came to, their curves laid over each other, when each reached what all of them reached,
// and in which settings they differ. Any layouts and ways of waiting for one another. Torch-free.

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/report/run_reader.h"

namespace cohort::report {

/// More lines than that on one plot cannot be told apart.
inline constexpr size_t kMostCompared = 10;

/// A measure of one run over its evaluations: the first samples and seconds at which the validation loss was no higher than `level`.
/// Seconds are those of the virtual clock where the run had one, else of its steps, without evaluations and checkpoints.
struct Reached {
  double samples = kUnknown, seconds = kUnknown;
};
Reached first_reaching(const RunRecord& run, double level);

/// The highest of the runs' lowest validation losses: what all of them reached. Unknown where one has no evaluation.
double common_level(const std::vector<RunRecord>& runs);

/// The page. `names` are as the runs are to be called, one each.
std::string comparison_page(const std::vector<RunRecord>& runs, const std::vector<std::string>& names);

/// Reads run folders (2 to kMostCompared, none twice) and writes the page by rename. Error(kBadInput) otherwise, as write_report() has
/// them.
void write_comparison(const std::vector<std::string>& runs, const std::string& file);

}  // namespace cohort::report
