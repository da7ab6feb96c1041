#include "cohort/study/analysis/fits.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/study/analysis/fit_search.h"

namespace cohort::study {
namespace {

constexpr const char* kLawNames[] = {"hyperbola", "knee", "log-linear"};

double smallest_batch(std::span<const StepsPoint> points) {
  double smallest = points.empty() ? 0 : points.front().batch_size;
  for (const StepsPoint& point : points) smallest = std::min(smallest, point.batch_size);
  return smallest;
}

Fit fit_without_residuals(Law law, std::span<const StepsPoint> points, double reference_batch) {
  switch (law) {
    case Law::kHyperbola:
      return fit_hyperbola(points);
    case Law::kKnee:
      return fit_knee(points);
    case Law::kLogLinear:
      break;
  }
  return fit_log_linear(points, reference_batch > 0 ? reference_batch : smallest_batch(points));
}

}  // namespace

const char* name_of(Law law) { return kLawNames[static_cast<int>(law)]; }

Law parse_law(const std::string& name) {
  for (const Law law : {Law::kHyperbola, Law::kKnee, Law::kLogLinear})
    if (name == name_of(law)) return law;
  fail(ErrorCode::kBadInput, "law '", name, "' is none of hyperbola, knee, log-linear");
}

double Fit::steps_at(double batch_size) const {
  if (law == Law::kLogLinear) return parameters[0].second + parameters[1].second / batch_size;
  const double min_steps = parameters[0].second, critical = parameters[1].second;
  if (std::isinf(critical)) return min_examples / batch_size;
  if (law == Law::kHyperbola) return min_steps * (1 + critical / batch_size);
  const double exponent = parameters[2].second;
  // In logarithms: (Bc / B)^e overflows for sharp knees.
  const double power = exponent * std::log(critical / batch_size);
  return min_steps * std::exp((power > 0 ? power + std::log1p(std::exp(-power)) : std::log1p(std::exp(power))) / exponent);
}

Fit fit_law(Law law, std::span<const StepsPoint> points, double reference_batch) {
  Fit fit = fit_without_residuals(law, points, reference_batch);
  for (const StepsPoint& point : points) fit.residuals_log.push_back(std::log(point.steps / fit.steps_at(point.batch_size)));
  return fit;
}

std::vector<StepsPoint> points_of(const std::vector<StepsToResult>& steps) {
  std::vector<StepsPoint> points;
  // A goal that the untrained model meets (step 0) says nothing of batch sizes, and has no logarithm.
  for (const StepsToResult& result : steps)
    if (result.steps && *result.steps > 0)
      points.push_back({.batch_size = static_cast<double>(result.batch_size), .steps = static_cast<double>(*result.steps)});
  return points;
}

}  // namespace cohort::study
