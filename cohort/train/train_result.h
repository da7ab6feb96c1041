#pragma once
// What a training came to.

#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace cohort {

struct TrainResult {
  int64_t steps = 0;  ///< Completed, those before a resume included.
  double loss = 0;    ///< Of the last step.
  double val_loss = 0, val_error = 0;
  double val_precision = std::numeric_limits<double>::quiet_NaN(),
         test_precision = std::numeric_limits<double>::quiet_NaN();  ///< Of data with labels; else NaN.
  int64_t test_samples = 0;  ///< Of the test set, that were evaluated at the end; 0: none, or the run was interrupted.
  double test_loss = 0, test_error = 0;
  std::map<std::string, double> metrics, test_metrics;  ///< Of config.metrics, by name.
  double seconds = 0;
  double step_seconds = 0;  ///< Median.
  bool interrupted = false;
  std::string reason;  ///< Why it ended: "steps" (all were made), "goal" or "patience"; empty where it was interrupted.
};

}  // namespace cohort
