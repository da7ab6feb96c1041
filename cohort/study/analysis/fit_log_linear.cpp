// log S = log(a + b / B), least squares in log S, and the batch size at which steps are 20 % above linear scaling from a reference batch:
//   a + b / B = 1.2 (a + b / Bref) Bref / B   gives   B = 1.2 Bref + 0.2 b / a.
// The curve is the hyperbola's (a = Smin, b = Smin Bc); the critical batch size is another one: it moves with the reference.
// The note names that batch size, not b / a.
// Source: Zhang, Morwani, Vyas and others 2024, "How Does Critical Batch Size Scale in Pre-training?", section 2 and its published code,
// which solves for B numerically; the closed form gives the same digits.
#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/study/analysis/fit_search.h"

namespace cohort::study {
namespace {

std::string note_of(const Fit& fit, const Curve& curve, std::span<const StepsPoint> points, double reference_batch) {
  const auto [smallest, largest] = std::minmax_element(
      points.begin(), points.end(), [](const StepsPoint& one, const StepsPoint& other) { return one.batch_size < other.batch_size; });
  if (curve.log_critical == -INFINITY)
    return concat("steps do not fall from the smallest batch size, ", smallest->batch_size,
                  ", on: b is 0, and the 20 % critical batch size is but 1.2 times the reference, ", reference_batch);
  if (std::isinf(fit.critical_batch_size)) return fit.note;  // Of all laws: steps fall as 1 / B to the end.
  if (fit.critical_batch_size > largest->batch_size)
    return "the 20 % critical batch size lies above the largest batch size measured: extrapolated";
  if (fit.critical_batch_size < smallest->batch_size)
    return "the 20 % critical batch size lies below the smallest batch size measured: extrapolated";
  return "";
}

}  // namespace

Fit fit_log_linear(std::span<const StepsPoint> points, double reference_batch) {
  constexpr double kExcess = 0.2;
  const LogPoints logs = log_points(points, Law::kLogLinear, 2);
  const Curve curve = search_critical(logs, 1);
  Fit fit = fit_of_curve(Law::kLogLinear, curve, logs);
  fit.parameters = {{"a", std::exp(curve.log_steps)}, {"b", fit.min_examples}};
  fit.critical_batch_size = (1 + kExcess) * reference_batch + kExcess * std::exp(curve.log_critical);
  fit.note = note_of(fit, curve, points, reference_batch);
  return fit;
}

}  // namespace cohort::study
