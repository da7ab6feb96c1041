#include "cohort/study/analysis/fit_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kBeyond = 14;          // log Bc is searched so far beyond the data: there a curve differs from its limit by 1e-6.
constexpr double kCell = 0.7;           // Of the grid over log Bc.
constexpr double kExponentCell = 0.28;  // Of the grid over log e.
constexpr int kGoldenSteps = 36;        // 0.618^36 = 3e-8 of a cell, the square root of what doubles resolve.
constexpr int kProfileSteps = 14;       // 1e-3 of a cell tells cells of e apart,
constexpr int kExponentSteps = 24;      // and 1e-5 is enough for e itself.

double softplus(double z) { return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)); }

/// log S - log Smin of the curve.
double rise(double log_batch, double log_critical, double exponent) { return softplus(exponent * (log_critical - log_batch)) / exponent; }

struct Misfit {
  double squares, mean;
};
/// Of residuals around their mean. One pass: shifted by the first, as all are near each other where the fit is good.
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

/// Where `f` is least in [low, high] if it has one valley there.
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

/// The better of `curve` and the family's limits. Ties go to the limits: noise-free data of a limit improve towards the end of the grid
/// without ever reaching it. 1e-12 (nats) squared is what rounding leaves of a perfect fit.
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

}  // namespace

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

Curve search_critical(const LogPoints& points, double exponent) {
  const auto squares = [&](double log_critical) { return misfit_at(points, log_critical, exponent).squares; };
  const std::vector<double> values = critical_grid(points);
  const double best = least_of(values, squares), cell = values[1] - values[0];
  return with_limits(points, curve_at(points, golden_section(best - cell, best + cell, kGoldenSteps, squares), exponent));
}

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

Fit fit_of_curve(Law law, const Curve& curve, const LogPoints& points) {
  Fit fit;
  fit.law = law;
  fit.critical_batch_size = std::exp(curve.log_critical);
  fit.min_examples = std::exp(curve.log_examples);
  fit.rms_log = std::sqrt(curve.squares / static_cast<double>(points.batch.size()));
  fit.note = note_of(curve, points);
  return fit;
}

}  // namespace cohort::study
