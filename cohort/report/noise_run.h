#pragma once
// The gradient noise scale that a training measured (`cohort train --noise-scale N`), by stretches of the training: for the run's report
// and for putting beside a study's fitted critical batch size.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/report/run_reader.h"
#include "cohort/study/noise/noise_scale.h"

namespace cohort::report {

/// One stretch of the training.
struct NoisePoint {
  study::NoiseWindow window;
  double loss = kUnknown;                            ///< Mean training loss of the recorded steps of the stretch.
  double val_loss = kUnknown, val_error = kUnknown;  ///< Of the last evaluation up to its end.
};
/// At most 8 stretches, of equal ratio of steps; empty where nothing was measured. Lines without norms are left out.
std::vector<NoisePoint> noise_points(const RunRecord& run);
/// The same from a run folder. Error(kBadInput) where it is none, or has no measurement: says how to get one.
std::vector<NoisePoint> read_noise_run(const std::string& run);

/// What a study keeps as its note "noise_scale": a JSON list of {"loss", "noise_scale", "batch", "step", "first_step", "standard_error",
/// "gradient_squared", "trace", "val_loss", "val_error"}, in the order of the training; numbers that are not known are null.
std::string noise_note(const std::vector<NoisePoint>& points);

}  // namespace cohort::report
