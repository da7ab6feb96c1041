#pragma once
// What forecasts of a step were off by on this machine: the interval of the next forecast that follows from it, and the file that keeps
// it, one JSON line a run (docs/formats/calibration.md). Torch-free; formulas in calibration_file.cpp.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

/// One run with a forecast: what was said, and what was then measured.
struct ForecastError {
  std::string model;         ///< The profile's name of it;
  int64_t parameters = 0;    ///< with this many trained elements: sizes of one family are other models.
  std::string layout_class;  ///< layout_class() of its layout.
  std::string precision;     ///< fp32, bf16, fp16.
  int workers = 1;
  int64_t global_batch = 0, steps = 0;
  double predicted_step_seconds = 0, measured_step_seconds = 0;
  int64_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< Of the rank that had most; 0: not known.
};

/// What decides how good a forecast is, beside the model: the axes with several ranks, ZeRO, schedule, recompute, compression. Not the
/// degrees and not the number of micro-batches: "single", "dp", "dp zero=3", "dp pp 1f1b", "tp".
std::string layout_class(const Layout& layout);

/// Factors of a forecast: of 100 runs 90 should be between.
struct ErrorInterval {
  double low = 1, high = 1;  ///< low <= 1 <= high.
  std::string from;          ///< "5 runs of fc as dp".
};

/// For the forecasts of one model. Immutable; copies are independent.
class ForecastIntervals {
 public:
  /// Knows nothing: the intervals of profile and cluster stand.
  ForecastIntervals() = default;
  /// `errors` from the oldest to the newest.
  ForecastIntervals(const std::vector<ForecastError>& errors, const std::string& model, int64_t parameters);

  /// From runs of the model in this class; where there are not enough, from other models in this class, then from all; null where those
  /// are not enough either. `precision` where the layout does not say one.
  const ErrorInterval* of(const Layout& layout, const std::string& precision) const;

 private:
  std::map<std::string, ErrorInterval> of_model_, of_class_;  ///< By class and precision.
  ErrorInterval of_all_;                                      ///< Without `from`: not enough.
};

/// Runs of fewer steps are not kept: their median says little. Fewer errors make no interval.
inline constexpr int64_t kLeastStepsThatCount = 10;
inline constexpr size_t kLeastErrors = 3;

// The file.

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
