#pragma once
// The gradient noise scale that a training measured (`cohort train --noise-scale N`), in windows over the training, for the run's report
// and for comparison with a study's fitted critical batch size.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/report/run_reader.h"
#include "cohort/study/noise/noise_scale.h"

namespace cohort::report {

/// The noise scale in one window of steps.
struct NoisePoint {
  study::NoiseWindow window;
  double loss = kUnknown;                            ///< Mean training loss of the recorded steps in the window.
  double val_loss = kUnknown, val_error = kUnknown;  ///< The last evaluation up to its end.
};
/// At most 8 windows of equal ratio of steps; empty where nothing was measured. Lines without norms are skipped.
std::vector<NoisePoint> noise_points(const RunRecord& run);
/// Reads them from a run folder. Error(kBadInput) where it is not a run folder or has no measurement, with how to get one.
std::vector<NoisePoint> read_noise_run(const std::string& run);

/// The note "noise_scale" of a study: a JSON list of {"loss", "noise_scale", "batch", "step", "first_step", "standard_error",
/// "gradient_squared", "trace", "val_loss", "val_error"}, in the order of steps; unknown numbers are null.
std::string noise_note(const std::vector<NoisePoint>& points);

}  // namespace cohort::report
