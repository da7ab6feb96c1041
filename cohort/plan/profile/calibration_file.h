#pragma once
// The file that keeps what forecasts were off by, one JSON line a run: docs/formats/calibration.md. Torch-free.

#include <string>
#include <vector>

#include "cohort/plan/profile/error_intervals.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

/// $XDG_CACHE_HOME/cohort/calibration.jsonl, or ~/.cache/cohort/calibration.jsonl; "" where neither variable is there.
std::string default_calibration_file();
/// What --calibration says: a file, "none" (then ""), or nothing, which is the default one.
std::string calibration_file(const std::string& option);

struct KeptErrors {
  std::vector<ForecastError> errors;  ///< The newest 1,000 at most, oldest first.
  std::string damaged;                ///< One sentence that names the first line that was left out; "" for none.
};
/// Nothing where `path` is "" or there is no such file. What cannot be read, or is no line of the format, is left out and said.
KeptErrors read_calibration(const std::string& path);

/// Error(kBadInput) in one line for a file that --calibration names and that is none: a folder, a device, or one without a single line that
/// can be read. One that cannot be written is a reason to say so at the end of a run, and none to stop; the default file is none at all.
void check_calibration_option(const std::string& option);

/// What the file says of forecasts of this profile's model. A warning tells what was left out of it.
ForecastIntervals kept_intervals(const std::string& path, const ModelProfile& profile);

/// Appends one line by one write, so that two runs that end at once do not mix; folders are made. A file beyond 4 MiB is cut to its newest
/// 1,000 lines, by a new file in its place: what another run appends in that moment is lost. Returns "", or why it could not be written.
std::string append_calibration(const std::string& path, const ForecastError& error);

}  // namespace cohort
