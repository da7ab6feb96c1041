// log S = log(a + b / B), least squares in log S, and the batch size at which steps are 20 % above linear scaling from a reference batch:
//   a + b / B = 1.2 (a + b / Bref) Bref / B   gives   B = 1.2 Bref + 0.2 b / a.
// The curve is the hyperbola's (a = Smin, b = Smin Bc); the critical batch size is another one: it moves with the reference.
// Source: Zhang, Morwani, Vyas and others 2024, "How Does Critical Batch Size Scale in Pre-training?", section 2 and its published code,
// which solves for B numerically; the closed form gives the same digits.
#include <cmath>

#include "cohort/study/fit_search.h"

namespace cohort::study {

Fit fit_log_linear(std::span<const StepsPoint> points, double reference_batch) {
  constexpr double kExcess = 0.2;
  const LogPoints logs = log_points(points, Law::kLogLinear, 2);
  const Curve curve = search_critical(logs, 1);
  Fit fit = fit_of_curve(Law::kLogLinear, curve, logs);
  fit.parameters = {{"a", std::exp(curve.log_steps)}, {"b", fit.min_examples}};
  fit.critical_batch_size = (1 + kExcess) * reference_batch + kExcess * std::exp(curve.log_critical);
  return fit;
}

}  // namespace cohort::study
