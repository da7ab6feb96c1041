#pragma once
// Result of an evaluation. Torch-free.

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace cohort {

/// A misclassified sample.
struct Mistake {
  int64_t sample = 0;  ///< Index in the evaluated data.
  int64_t label = 0, predicted = 0;
  double probability = 0;  ///< Of the predicted class.
};

struct Evaluation {
  double loss = 0;  ///< Mean of the model's own loss over all samples, else mean cross-entropy (nats) over all targets.
  /// Classification: fraction of targets whose likeliest class is wrong (NaN where a custom loss has no class scores). Regression: root
  /// mean squared error relative to the deviation of the training targets. Labels: fraction of scores on the wrong side of 0.
  double error = 0;
  /// Mean average precision for labels (metrics.h); NaN for other data, or where it is undefined.
  double precision = std::numeric_limits<double>::quiet_NaN();
  int64_t num_targets = 0;
  std::vector<std::vector<int64_t>> confusion;  ///< [true class][predicted class]; only if requested.
  std::map<std::string, double> metrics;        ///< Requested metrics by name (metrics.h); NaN: undefined.
  std::vector<Mistake> mistakes;                ///< By falling confidence; as many as requested.
  bool has_error() const { return !std::isnan(error); }
  bool has_precision() const { return !std::isnan(precision); }
};

}  // namespace cohort
