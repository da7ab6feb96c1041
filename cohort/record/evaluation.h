#pragma once
// What an evaluation found. Torch-free.

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace cohort {

/// A sample that was taken for another class than its own.
struct Mistake {
  int64_t sample = 0;  ///< Its place in the data that were evaluated.
  int64_t label = 0, predicted = 0;
  double probability = 0;  ///< That the model gave to the predicted class.
};

struct Evaluation {
  double loss = 0;  ///< The model's loss, the mean over all samples; else the mean cross-entropy (nats) over all targets.
  /// Share of targets whose likeliest class is wrong; NaN where a loss of one's own is of no scores of classes. Of a regression the root of
  /// the mean squared error, as a part of the deviation that targets have in the training data. Of labels the share of those, over all
  /// samples, whose score is on the wrong side of 0.
  double error = 0;
  /// Of labels the mean average precision (metrics.h); NaN of other data, and where it is not defined.
  double precision = std::numeric_limits<double>::quiet_NaN();
  int64_t num_targets = 0;
  std::vector<std::vector<int64_t>> confusion;  ///< [true class][predicted class]; only when asked for.
  std::map<std::string, double> metrics;        ///< Those that were asked for by name (metrics.h); NaN where one is not defined.
  std::vector<Mistake> mistakes;                ///< The surest first; at most as many as were asked for.
  bool has_error() const { return !std::isnan(error); }
  bool has_precision() const { return !std::isnan(precision); }
};

}  // namespace cohort
