// S = Smin (1 + Bc / B): steps against batch size where noise and curvature trade once. Smin is what no batch size goes below; E = Smin Bc
// are the samples that no batch size goes below; at B = Bc both are twice their least.
// Least squares in log S by a search over log Bc alone (fit_search.h).
// Source: McCandlish, Kaplan, Amodei and others 2018, "An Empirical Model of Large-Batch Training", section 2.3. They fit many goals of one
// run; we fit one goal of searched trials, as the batch-size study's authors define steps to result.
#include <cmath>

#include "cohort/study/analysis/fit_search.h"

namespace cohort::study {

Fit fit_hyperbola(std::span<const StepsPoint> points) {
  const LogPoints logs = log_points(points, Law::kHyperbola, 2);
  const Curve curve = search_critical(logs, 1);
  Fit fit = fit_of_curve(Law::kHyperbola, curve, logs);
  fit.parameters = {{"Smin", std::exp(curve.log_steps)}, {"Bc", fit.critical_batch_size}};
  return fit;
}

}  // namespace cohort::study
