#pragma once
// The result of a training.

#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace cohort {

struct TrainResult {
  int64_t steps = 0;  ///< Completed, those before a resume included.
  double loss = 0;    ///< Loss of the last step.
  double val_loss = 0, val_error = 0;
  double val_precision = std::numeric_limits<double>::quiet_NaN(),
         test_precision = std::numeric_limits<double>::quiet_NaN();  ///< For data with labels; else NaN.
  int64_t test_samples = 0;  ///< Test samples evaluated at the end; 0: no test set, or the run was interrupted.
  double test_loss = 0, test_error = 0;
  std::map<std::string, double> metrics, test_metrics;  ///< Values of config.metrics, by name.
  double seconds = 0;
  double step_seconds = 0;  ///< Median.
  bool interrupted = false;
  std::string reason;  ///< Why it ended: "steps" (all were made), "goal" or "patience"; empty where it was interrupted.
};

}  // namespace cohort
