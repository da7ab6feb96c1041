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

/// One run: its forecast, and what was measured.
struct ForecastError {
  std::string model;         ///< The profile's name of it;
  int64_t parameters = 0;    ///< with this many trained elements: sizes of one family are other models.
  std::string layout_class;  ///< layout_class() of its layout.
  std::string precision;     ///< fp32, bf16, fp16.
  int workers = 1;
  int64_t global_batch = 0, steps = 0;
  double predicted_step_seconds = 0, measured_step_seconds = 0;
  int64_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< Of the rank with the most memory; 0: unknown.
};

/// What decides the quality of a forecast, besides the model: the axes with several ranks, ZeRO, schedule, recompute, compression. Not the
/// degrees and not the number of micro-batches: "single", "dp", "dp zero=3", "dp pp 1f1b", "tp".
std::string layout_class(const Layout& layout);

/// Factors of a forecast: the 90 % prediction interval.
struct ErrorInterval {
  double low = 1, high = 1;  ///< low <= 1 <= high.
  std::string from;          ///< "5 runs of fc as dp".
};

/// The intervals of forecasts of one model. Immutable; copies are independent.
class ForecastIntervals {
 public:
  /// Without errors; the intervals of profile and cluster are used.
  ForecastIntervals() = default;
  /// `errors` from the oldest to the newest.
  ForecastIntervals(const std::vector<ForecastError>& errors, const std::string& model, int64_t parameters);

  /// The interval from runs of the model in this class; where these are too few, from other models in this class, then from all runs; null
  /// where those are too few as well. `precision` is used where the layout names none.
  const ErrorInterval* of(const Layout& layout, const std::string& precision) const;

 private:
  std::map<std::string, ErrorInterval> of_model_, of_class_;  ///< Keyed by class and precision.
  ErrorInterval of_all_;                                      ///< `from` is empty where there are too few errors.
};

/// Runs with fewer steps are not recorded, because their median is unreliable. Fewer errors than kLeastErrors make no interval.
inline constexpr int64_t kLeastStepsThatCount = 10;
inline constexpr size_t kLeastErrors = 3;

// The file.

/// $XDG_CACHE_HOME/cohort/calibration.jsonl, or ~/.cache/cohort/calibration.jsonl; "" where neither variable is there.
std::string default_calibration_file();
/// The file that --calibration names: "" for "none", the default file for an empty option.
std::string calibration_file(const std::string& option);

struct KeptErrors {
  std::vector<ForecastError> errors;  ///< The newest 1,000 at most, oldest first.
  std::string damaged;                ///< One sentence that names the first line that was left out; "" for none.
};
/// Empty where `path` is "" or does not exist. Lines that cannot be read are skipped and reported in `damaged`.
KeptErrors read_calibration(const std::string& path);

/// Error(kBadInput) for an invalid --calibration file: a folder, a device, or a file without a valid line. A file that cannot be written is
/// only reported at the end of a run; the default file is never refused.
void check_calibration_option(const std::string& option);

/// The file's intervals for the model of this profile. Logs a warning about damaged lines.
ForecastIntervals kept_intervals(const std::string& path, const ModelProfile& profile);

/// Appends one line by one write, so that two runs that end at once do not mix; folders are made. A file beyond 4 MiB is cut to its newest
/// 1,000 lines by replacing it, which loses what another run appends at that moment. Returns "", or why it could not be written.
std::string append_calibration(const std::string& path, const ForecastError& error);

}  // namespace cohort
