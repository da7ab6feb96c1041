// S = Smin (1 + (Bc / B)^e)^(1/e): the hyperbola with a knee whose sharpness is fitted. e = 1 is the hyperbola; momentum runs of published
// studies are sharper (e about 3), some convolutional networks softer (0.65). Both ends are those of the hyperbola: Smin Bc / B for small
// B, Smin for large. e is searched in [0.2, 10]: beyond, the curve is a straight line or two straight lines, and data do not tell how much.
// Least squares in log S by a nested search over log e and log Bc (fit_search.h).
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/study/analysis/fit_search.h"

namespace cohort::study {

Fit fit_knee(std::span<const StepsPoint> points) {
  constexpr double kSoftest = 0.2, kSharpest = 10;
  const LogPoints logs = log_points(points, Law::kKnee, 3);
  const Curve curve = search_knee(logs, kSoftest, kSharpest);
  Fit fit = fit_of_curve(Law::kKnee, curve, logs);
  fit.parameters = {{"Smin", std::exp(curve.log_steps)}, {"Bc", fit.critical_batch_size}, {"e", curve.exponent}};
  const auto add_note = [&](const std::string& text) { fit.note += (fit.note.empty() ? "" : "; ") + text; };
  if (!std::isfinite(curve.log_critical)) add_note("without a knee there is no e");
  else if (curve.exponent < 1.001 * kSoftest)
    add_note(concat("e is at the end of its range, ", kSoftest, ": the curve bends less than the data can tell"));
  else if (curve.exponent > 0.999 * kSharpest)
    add_note(concat("e is at the end of its range, ", kSharpest, ": the knee is sharper than the data can tell"));
  return fit;
}

}  // namespace cohort::study
