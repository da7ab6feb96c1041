#pragma once
// Internal to the fits: the search that the laws share. All three are, in logarithms,
//   log S = log Smin + softplus(e (log Bc - log B)) / e,   softplus(z) = log(1 + exp z)
// with e = 1 for the hyperbola and the log-linear law (a = Smin, b = Smin Bc). For a given Bc and e the best log Smin is the mean of the
// rest, so one or two numbers are left to search.

#include <span>
#include <vector>

#include "cohort/study/analysis/fits.h"

namespace cohort::study {

/// What is fitted, in logarithms.
struct LogPoints {
  std::vector<double> batch, steps;
};

/// One curve of the family. At Bc = 0 it is flat (log_examples is -infinity), at Bc infinite it is S = exp(log_examples) / B (log_steps is
/// -infinity).
struct Curve {
  double log_critical = 0, exponent = 1;
  double log_steps = 0;     ///< log Smin.
  double log_examples = 0;  ///< log(Smin Bc).
  double squares = 0;       ///< Sum of squared residuals.
};

/// Error(kBadInput) naming the law where fewer than `num_parameters` + 1 distinct batch sizes are given, or a value is not positive.
LogPoints log_points(std::span<const StepsPoint> points, Law law, int num_parameters);

/// The best curve with this exponent: a grid over log Bc, far beyond both ends of the data, then golden section around its best cell; the
/// two limits (flat, 1 / B) are tried as well, and win ties.
Curve search_critical(const LogPoints& points, double exponent);
/// The best curve with an exponent between the two: the grid is over both, and the golden sections are nested.
Curve search_knee(const LogPoints& points, double lowest_exponent, double highest_exponent);

/// critical_batch_size, min_examples, rms and the sentence, from the curve; parameters are the law's own. Residuals are left to fit_law.
Fit fit_of_curve(Law law, const Curve& curve, const LogPoints& points);

// The laws, one file each.
Fit fit_hyperbola(std::span<const StepsPoint> points);
Fit fit_knee(std::span<const StepsPoint> points);
Fit fit_log_linear(std::span<const StepsPoint> points, double reference_batch);

}  // namespace cohort::study
