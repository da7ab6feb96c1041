// Least-squares fits of three laws of steps S against batch size B. In logarithms all three are
//   log S = log Smin + softplus(e (log Bc - log B)) / e,   softplus(z) = log(1 + exp z)
// with e = 1 for the hyperbola and the log-linear law (a = Smin, b = Smin Bc). For given Bc and e the best log Smin is the mean of the
// remainder, so one or two numbers are left to search: a grid, then golden section in the best cell. Each law names its source below.
#include "cohort/study/analysis/fits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

constexpr const char* kLawNames[] = {"hyperbola", "knee", "log-linear"};

/// The data, in logarithms.
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kBeyond = 14;          // log Bc is searched so far beyond the data: there a curve differs from its limit by 1e-6.
constexpr double kCell = 0.7;           // Width of the grid over log Bc.
constexpr double kExponentCell = 0.28;  // Width of the grid over log e.
constexpr int kGoldenSteps = 36;        // 0.618^36 = 3e-8 of a cell, the square root of what doubles resolve.
constexpr int kProfileSteps = 14;       // 1e-3 of a cell, enough to choose the cell of e.
constexpr int kExponentSteps = 24;      // 1e-5 of a cell, enough for e itself.

double softplus(double z) { return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)); }

/// log S - log Smin of the curve.
double rise(double log_batch, double log_critical, double exponent) { return softplus(exponent * (log_critical - log_batch)) / exponent; }

struct Misfit {
  double squares, mean;
};
/// Sum of squares of the residuals around their mean, in one pass; shifted by the first residual against cancellation.
template <typename Residual>
Misfit misfit(size_t count, const Residual& residual) {
  const double first = residual(0);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < count; ++i) {
    const double difference = residual(i) - first;
    sum += difference;
    squares += difference * difference;
  }
  const double mean = sum / static_cast<double>(count);
  return {.squares = std::max(0.0, squares - sum * mean), .mean = first + mean};
}

Misfit misfit_at(const LogPoints& points, double log_critical, double exponent) {
  return misfit(points.batch.size(), [&](size_t i) { return points.steps[i] - rise(points.batch[i], log_critical, exponent); });
}

/// Minimizes `f` over [low, high], where it is unimodal.
template <typename Function>
double golden_section(double low, double high, int num_steps, const Function& f) {
  constexpr double kGolden = 0.6180339887498949;
  double left = high - kGolden * (high - low), right = low + kGolden * (high - low);
  double f_left = f(left), f_right = f(right);
  for (int i = 0; i < num_steps; ++i) {
    if (f_left <= f_right) {
      high = right;
      right = left;
      f_right = f_left;
      left = high - kGolden * (high - low);
      f_left = f(left);
    } else {
      low = left;
      left = right;
      f_left = f_right;
      right = low + kGolden * (high - low);
      f_right = f(right);
    }
  }
  return (low + high) / 2;
}

template <typename Function>
double least_of(const std::vector<double>& values, const Function& f) {
  double best = values.front(), least = kInfinity;
  for (const double value : values)
    if (const double here = f(value); here < least) least = here, best = value;
  return best;
}

std::vector<double> grid(double low, double high, double cell) {
  const int num_cells = std::max(1, static_cast<int>(std::ceil((high - low) / cell)));
  std::vector<double> values;
  for (int i = 0; i <= num_cells; ++i) values.push_back(low + (high - low) * i / num_cells);
  return values;
}

std::vector<double> critical_grid(const LogPoints& points) {
  const auto [smallest, largest] = std::minmax_element(points.batch.begin(), points.batch.end());
  return grid(*smallest - kBeyond, *largest + kBeyond, kCell);
}

Curve curve_at(const LogPoints& points, double log_critical, double exponent) {
  const Misfit best = misfit_at(points, log_critical, exponent);
  return {.log_critical = log_critical,
          .exponent = exponent,
          .log_steps = best.mean,
          .log_examples = best.mean + log_critical,
          .squares = best.squares};
}

/// The better of `curve` and the family's limits. Ties go to the limits, because noise-free data of a limit improve towards the end of the
/// grid without reaching it. 1e-12 (nats) squared is the rounding error of a perfect fit.
Curve with_limits(const LogPoints& points, const Curve& curve) {
  const size_t count = points.batch.size();
  const double tolerance = 1e-9 * curve.squares + 1e-24 * static_cast<double>(count);
  const Misfit flat = misfit(count, [&](size_t i) { return points.steps[i]; });
  const Misfit perfect = misfit(count, [&](size_t i) { return points.steps[i] + points.batch[i]; });
  if (flat.squares <= std::min(curve.squares + tolerance, perfect.squares))
    return {.log_critical = -kInfinity, .log_steps = flat.mean, .log_examples = -kInfinity, .squares = flat.squares};
  if (perfect.squares <= curve.squares + tolerance)
    return {.log_critical = kInfinity, .log_steps = -kInfinity, .log_examples = perfect.mean, .squares = perfect.squares};
  return curve;
}

std::string note_of(const Curve& curve, const LogPoints& points) {
  const auto [smallest, largest] = std::minmax_element(points.batch.begin(), points.batch.end());
  if (curve.log_critical == kInfinity)
    return concat("steps fall as 1/B up to the largest batch size, ", std::round(std::exp(*largest)),
                  ": these data do not bound the critical batch size");
  if (curve.log_critical == -kInfinity)
    return concat("steps do not fall from the smallest batch size, ", std::round(std::exp(*smallest)),
                  ", on: the critical batch size lies below it");
  if (curve.log_critical > *largest) return "Bc lies above the largest batch size measured: extrapolated";
  if (curve.log_critical < *smallest) return "Bc lies below the smallest batch size measured: extrapolated";
  return "";
}

/// Error(kBadInput) naming the law where fewer than `num_parameters` + 1 distinct batch sizes are given, or a value is not positive.
LogPoints log_points(std::span<const StepsPoint> points, Law law, int num_parameters) {
  LogPoints logs;
  std::set<double> distinct;
  for (const StepsPoint& point : points) {
    const bool is_positive = point.batch_size > 0 && point.steps > 0 && std::isfinite(point.batch_size) && std::isfinite(point.steps);
    if (!is_positive)
      fail(ErrorCode::kBadInput, "fit: batch size ", point.batch_size, " with ", point.steps, " steps: both must be positive numbers");
    logs.batch.push_back(std::log(point.batch_size));
    logs.steps.push_back(std::log(point.steps));
    distinct.insert(point.batch_size);
  }
  if (static_cast<int>(distinct.size()) <= num_parameters)
    fail(ErrorCode::kBadInput, "fit: ", name_of(law), " has ", num_parameters, " parameters and needs at least ", num_parameters + 1,
         " batch sizes that reached the goal; there are ", distinct.size());
  return logs;
}

/// The best curve with this exponent: a grid over log Bc, far beyond both ends of the data, then golden section around its best cell; the
/// two limits (flat, 1 / B) are tried as well, and win ties.
Curve search_critical(const LogPoints& points, double exponent) {
  const auto squares = [&](double log_critical) { return misfit_at(points, log_critical, exponent).squares; };
  const std::vector<double> values = critical_grid(points);
  const double best = least_of(values, squares), cell = values[1] - values[0];
  return with_limits(points, curve_at(points, golden_section(best - cell, best + cell, kGoldenSteps, squares), exponent));
}

/// The best curve with an exponent between the two: the grid is over both, and the golden sections are nested.
Curve search_knee(const LogPoints& points, double lowest_exponent, double highest_exponent) {
  const auto squares = [&](double log_critical, double log_exponent) {
    return misfit_at(points, log_critical, std::exp(log_exponent)).squares;
  };
  const auto best_critical = [&](double centre, double reach, double log_exponent, int num_steps) {
    return golden_section(centre - reach, centre + reach, num_steps, [&](double value) { return squares(value, log_exponent); });
  };
  // The profile: for every e of the grid its best Bc. Grid points alone would do for neither: their valley is narrow and askew.
  const std::vector<double> criticals = critical_grid(points);
  const double reach = criticals[1] - criticals[0];
  const std::vector<double> log_exponents = grid(std::log(lowest_exponent), std::log(highest_exponent), kExponentCell);
  double critical = 0, log_exponent = 0, least = kInfinity;
  for (const double of_exponent : log_exponents) {
    const double of_critical =
        best_critical(least_of(criticals, [&](double value) { return squares(value, of_exponent); }), reach, of_exponent, kProfileSteps);
    if (const double here = squares(of_critical, of_exponent); here < least)
      least = here, critical = of_critical, log_exponent = of_exponent;
  }
  // Bc and e trade against each other along the valley: the inner search may go two cells either way.
  const double cell = log_exponents[1] - log_exponents[0];
  const double low = std::max(log_exponents.front(), log_exponent - cell), high = std::min(log_exponents.back(), log_exponent + cell);
  const auto profile = [&](double value) { return squares(best_critical(critical, 2 * reach, value, kGoldenSteps), value); };
  const double found = golden_section(low, high, kExponentSteps, profile);
  Curve best = curve_at(points, best_critical(critical, 2 * reach, found, kGoldenSteps), std::exp(found));
  // Golden section never tries the ends of a range; at the ends of e's the optimum may be just there.
  for (const double end : {low, high})
    if (const Curve curve = curve_at(points, best_critical(critical, 2 * reach, end, kGoldenSteps), std::exp(end));
        curve.squares <= best.squares)
      best = curve;
  return with_limits(points, best);
}

/// Sets what all laws share; parameters are set by each law, residuals by fit_law().
Fit fit_of_curve(Law law, const Curve& curve, const LogPoints& points) {
  Fit fit;
  fit.law = law;
  fit.critical_batch_size = std::exp(curve.log_critical);
  fit.min_examples = std::exp(curve.log_examples);
  fit.rms_log = std::sqrt(curve.squares / static_cast<double>(points.batch.size()));
  fit.note = note_of(curve, points);
  return fit;
}

// S = Smin (1 + Bc / B). Smin is the minimum of steps, E = Smin Bc the minimum of samples; at B = Bc both are twice their minimum. The
// search is over log Bc alone. Source: McCandlish, Kaplan, Amodei and others 2018, "An Empirical Model of Large-Batch Training",
// section 2.3. They fit many goals of one run; we fit one goal of searched trials.
Fit fit_hyperbola(std::span<const StepsPoint> points) {
  const LogPoints logs = log_points(points, Law::kHyperbola, 2);
  const Curve curve = search_critical(logs, 1);
  Fit fit = fit_of_curve(Law::kHyperbola, curve, logs);
  fit.parameters = {{"Smin", std::exp(curve.log_steps)}, {"Bc", fit.critical_batch_size}};
  return fit;
}

// S = Smin (1 + (Bc / B)^e)^(1/e): the hyperbola with a knee whose sharpness is fitted. e = 1 is the hyperbola; momentum runs of published
// studies are sharper (e about 3), some convolutional networks softer (0.65). Both ends are those of the hyperbola: Smin Bc / B for small
// B, Smin for large. e is searched in [0.2, 10]: beyond, data do not determine it. The search is nested,
// over log e and log Bc.
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

// log S = log(a + b / B), least squares in log S, and the batch size at which steps are 20 % above linear scaling from a reference batch:
//   a + b / B = 1.2 (a + b / Bref) Bref / B   gives   B = 1.2 Bref + 0.2 b / a.
// The curve is the hyperbola's (a = Smin, b = Smin Bc), but the critical batch size depends on the reference.
// Source: Zhang, Morwani, Vyas and others 2024, "How Does Critical Batch Size Scale in Pre-training?", section 2 and its published code,
// which solves for B numerically; the closed form gives the same digits.
std::string note_of(const Fit& fit, const Curve& curve, std::span<const StepsPoint> points, double reference_batch) {
  const auto [smallest, largest] = std::minmax_element(
      points.begin(), points.end(), [](const StepsPoint& one, const StepsPoint& other) { return one.batch_size < other.batch_size; });
  if (curve.log_critical == -INFINITY)
    return concat("steps do not fall from the smallest batch size, ", smallest->batch_size,
                  ", on: b is 0, and the 20 % critical batch size is but 1.2 times the reference, ", reference_batch);
  if (std::isinf(fit.critical_batch_size)) return fit.note;  // The note of all laws: steps fall as 1 / B to the end.
  if (fit.critical_batch_size > largest->batch_size)
    return "the 20 % critical batch size lies above the largest batch size measured: extrapolated";
  if (fit.critical_batch_size < smallest->batch_size)
    return "the 20 % critical batch size lies below the smallest batch size measured: extrapolated";
  return "";
}

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

double smallest_batch(std::span<const StepsPoint> points) {
  double smallest = points.empty() ? 0 : points.front().batch_size;
  for (const StepsPoint& point : points) smallest = std::min(smallest, point.batch_size);
  return smallest;
}

}  // namespace

const char* name_of(Law law) { return kLawNames[static_cast<int>(law)]; }

Law parse_law(const std::string& name) {
  for (const Law law : {Law::kHyperbola, Law::kKnee, Law::kLogLinear})
    if (name == name_of(law)) return law;
  fail(ErrorCode::kBadInput, "unknown law '", name, "'; expected hyperbola, knee or log-linear");
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
  Fit fit = law == Law::kHyperbola ? fit_hyperbola(points)
            : law == Law::kKnee    ? fit_knee(points)
                                   : fit_log_linear(points, reference_batch > 0 ? reference_batch : smallest_batch(points));
  for (const StepsPoint& point : points) fit.residuals_log.push_back(std::log(point.steps / fit.steps_at(point.batch_size)));
  return fit;
}

std::vector<StepsPoint> points_of(const std::vector<StepsToResult>& steps) {
  std::vector<StepsPoint> points;
  // A goal that the untrained model meets (step 0) is independent of the batch size, and has no logarithm.
  for (const StepsToResult& result : steps)
    if (result.steps && *result.steps > 0)
      points.push_back({.batch_size = static_cast<double>(result.batch_size), .steps = static_cast<double>(*result.steps)});
  return points;
}

}  // namespace cohort::study
