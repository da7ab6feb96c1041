// Fits the constants of the step model to measured steps.
//
// 1. Unknowns are the logarithms of the constants, so that all stay positive; residuals are log(forecast / measured), so that a tenth too
//    much counts as a tenth too little, of a short step as of a long one.
// 2. Levenberg-Marquardt with numeric derivatives, on the sum of |residual| rather than of its square (weights 1 / |residual|, at least
//    2 %, renewed each round: iteratively reweighted least squares): some steps are measured on a machine that swaps, and the rest should
//    not pay.
// 3. (log constant - log start)^2 is added for each constant: sixteen of them from a dozen runs are not determined, and what the runs do
//    not show keeps its prior value.
// 4. The interval: runs are left out in five turns, and forecast by constants from the others (cross-conformal prediction, Vovk 2015).
// With fewer than ten runs nothing is fitted: two disturbed measurements would change all constants.
//
// Cost: six fits, each of rounds (at most 100) x constants x runs evaluations of the model: 0.1 s for 720 runs.
// Source: Marquardt, SIAM J. Appl. Math. 11 (1963); Holland and Welsch, Comm. Statist. A6 (1977).

#include "bench/program/published/forecast/forecast.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/statistics.h"

namespace cohort {
namespace {

constexpr size_t kNumConstants = std::tuple_size_v<std::remove_cvref_t<decltype(machine_constants())>>;
constexpr int kRounds = 100;
constexpr double kLeastResidual = 0.02, kDifference = 1e-4, kLongestStep = 1, kGiveUpDamping = 1e9, kGoodEnough = 1e-9;
constexpr size_t kFewRuns = 10, kFolds = 5;
constexpr double kBelievedLow = 0.75,
                 kBelievedHigh = 1.35;  ///< With the starting constants 90 % of the published steps lie between these times the forecast.

using Logs = std::array<double, kNumConstants>;
using Matrix = std::array<Logs, kNumConstants>;

Logs logs_of(const Machine& machine) {
  Logs logs{};
  for (size_t i = 0; i < kNumConstants; ++i) logs[i] = std::log(machine.*machine_constants()[i].value);
  return logs;
}

Machine machine_of(const Logs& logs, Machine machine) {
  for (size_t i = 0; i < kNumConstants; ++i) machine.*machine_constants()[i].value = std::exp(logs[i]);
  return machine;
}

/// Solves a x = b for a symmetric, positive definite `a`, by Gaussian elimination.
Logs solve(Matrix a, Logs b) {
  for (size_t column = 0; column < kNumConstants; ++column)
    for (size_t row = column + 1; row < kNumConstants; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < kNumConstants; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  for (size_t row = kNumConstants; row-- > 0;) {
    for (size_t k = row + 1; k < kNumConstants; ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

class Fit {
 public:
  Fit(const std::vector<MeasuredRun>& runs, const Machine& start)
      : runs_(runs), start_(start), believed_(logs_of(start)), logs_(believed_) {}

  Machine machine() {
    std::vector<double> residuals = residuals_at(logs_);
    for (int round = 0; round < kRounds && improve(residuals); ++round) {
    }
    return machine_of(logs_, start_);
  }

  std::vector<double> residuals() const { return residuals_at(logs_); }

 private:
  std::vector<double> residuals_at(const Logs& logs) const {
    const Machine machine = machine_of(logs, start_);
    std::vector<double> residuals;
    residuals.reserve(runs_.size());
    for (const MeasuredRun& run : runs_) residuals.push_back(std::log(transformer_step_seconds(run.run, machine) / run.measured_seconds));
    return residuals;
  }

  /// Makes one step downhill. Returns whether another is worth while.
  bool improve(std::vector<double>& residuals) {
    std::vector<double> weights;
    for (const double residual : residuals) weights.push_back(1 / std::max(std::abs(residual), kLeastResidual));
    Matrix curvature{};
    Logs gradient{};
    derivatives(residuals, weights, curvature, gradient);
    const double cost = cost_of(residuals, weights, logs_);
    for (; damping_ < kGiveUpDamping; damping_ *= 4) {
      const Logs next = stepped(curvature, gradient);
      std::vector<double> then = residuals_at(next);
      const double next_cost = cost_of(then, weights, next);
      if (!(next_cost < cost)) continue;
      logs_ = next;
      residuals = std::move(then);
      damping_ = std::max(damping_ / 3, 1e-9);
      return cost - next_cost > kGoodEnough * cost;
    }
    return false;
  }

  void derivatives(const std::vector<double>& residuals, const std::vector<double>& weights, Matrix& curvature, Logs& gradient) const {
    std::vector<std::vector<double>> slopes;
    for (size_t i = 0; i < kNumConstants; ++i) {
      Logs moved = logs_;
      moved[i] += kDifference;
      slopes.push_back(residuals_at(moved));
      for (size_t run = 0; run < residuals.size(); ++run) slopes[i][run] = (slopes[i][run] - residuals[run]) / kDifference;
    }
    for (size_t i = 0; i < kNumConstants; ++i) {
      for (size_t run = 0; run < residuals.size(); ++run) gradient[i] += weights[run] * slopes[i][run] * residuals[run];
      for (size_t k = 0; k < kNumConstants; ++k)
        for (size_t run = 0; run < residuals.size(); ++run) curvature[i][k] += weights[run] * slopes[i][run] * slopes[k][run];
      gradient[i] += logs_[i] - believed_[i];
      curvature[i][i] += 1;
    }
  }

  Logs stepped(Matrix curvature, const Logs& gradient) const {
    for (size_t i = 0; i < kNumConstants; ++i) curvature[i][i] *= 1 + damping_;
    const Logs step = solve(curvature, gradient);
    Logs next = logs_;
    for (size_t i = 0; i < kNumConstants; ++i) next[i] -= std::clamp(step[i], -kLongestStep, kLongestStep);
    return next;
  }

  double cost_of(const std::vector<double>& residuals, const std::vector<double>& weights, const Logs& logs) const {
    double cost = 0;
    for (size_t run = 0; run < residuals.size(); ++run) cost += weights[run] * residuals[run] * residuals[run];
    for (size_t i = 0; i < kNumConstants; ++i) cost += (logs[i] - believed_[i]) * (logs[i] - believed_[i]);
    return cost;
  }

  const std::vector<MeasuredRun>& runs_;
  const Machine& start_;
  Logs believed_, logs_;
  double damping_ = 1e-2;
};

/// log(forecast / measured) of every run, with constants that were fitted without it.
std::vector<double> residuals_of_strangers(const std::vector<MeasuredRun>& runs, const Machine& start) {
  std::vector<double> residuals;
  for (size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<MeasuredRun> known, strange;
    for (size_t i = 0; i < runs.size(); ++i) (i % kFolds == fold ? strange : known).push_back(runs[i]);
    const Machine machine = Fit(known, start).machine();
    const std::vector<double> here = Fit(strange, machine).residuals();
    residuals.insert(residuals.end(), here.begin(), here.end());
  }
  return residuals;
}

}  // namespace

FittedMachine fit_machine(const std::vector<MeasuredRun>& runs, const Machine& start) {
  for (const MeasuredRun& run : runs)
    if (!(run.measured_seconds > 0) || !std::isfinite(run.measured_seconds))
      fail(ErrorCode::kBadInput, "a measured step of ", run.measured_seconds, " s: expected a positive number");
  if (runs.size() < kFewRuns) return {start, kBelievedLow, kBelievedHigh};
  const std::vector<double> residuals = residuals_of_strangers(runs, start);
  // The (n + 1)-th run is inside with 90 % where the interval is wider than that of the n by so much: all of them, where n is below 19.
  const auto count = static_cast<double>(residuals.size());
  const double high = std::min(1.0, 0.95 * (count + 1) / count);
  return {Fit(runs, start).machine(), std::exp(-quantile(residuals, high)), std::exp(-quantile(residuals, 1 - high))};
}

// 1. Runs of one machine are put in a random order (a fixed seed); the first `fraction` of them fit its constants.
// 2. Errors, and the regret of the choices, are those of the others: the plan that is predicted fastest among the plans of one training
//    that were not fitted, against the fastest of these.

namespace {

constexpr uint64_t kSeed = 1;

/// The runs that fit the constants, chosen for each machine.
std::set<size_t> chosen_to_fit(const std::vector<size_t>& indices, double fraction) {
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < indices.size(); ++i) order.push_back({random_bits(kSeed, i), indices[i]});
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(fraction * static_cast<double>(order.size())));
  std::set<size_t> chosen;
  for (const auto& [key, index] : order) chosen.insert(index);
  return chosen;
}

}  // namespace

std::vector<ForecastRow> forecast_public_runs(const std::vector<PublicRun>& runs, double fraction) {
  if (!(fraction >= 0 && fraction <= 0.5))
    fail(ErrorCode::kBadInput, "a fraction of ", fraction, " to fit: expected 0 to 0.5; what is fitted proves nothing");
  std::map<std::string, std::vector<size_t>> by_machine;
  for (size_t i = 0; i < runs.size(); ++i) by_machine[runs[i].machine].push_back(i);
  std::vector<ForecastRow> rows(runs.size());
  for (const auto& [name, indices] : by_machine) {
    const std::set<size_t> chosen = chosen_to_fit(indices, fraction);
    std::vector<MeasuredRun> to_fit;
    for (const size_t index : chosen) to_fit.push_back(runs[index].measured);
    const FittedMachine fitted = fit_machine(to_fit, known_machine(name.substr(0, name.find(' '))));
    for (const size_t index : indices) {
      const PublicRun& run = runs[index];
      const double seconds = transformer_step_seconds(run.measured.run, fitted.machine);
      rows[index] = {
          run.row,    seconds,    run.measured.measured_seconds, seconds * fitted.low, seconds * fitted.high, chosen.contains(index),
          run.choice, run.samples};
    }
  }
  return rows;
}

ForecastErrors errors_of(const std::vector<ForecastRow>& rows) {
  std::vector<double> errors;
  std::map<std::string, std::vector<const ForecastRow*>> choices;
  ForecastErrors result;
  for (const ForecastRow& row : rows) {
    if (row.was_fitted) continue;
    const double error = row.predicted_seconds / row.measured_seconds - 1;
    errors.push_back(std::abs(error));
    result.bias += error;
    result.covered += row.measured_seconds >= row.low_seconds && row.measured_seconds <= row.high_seconds ? 1 : 0;
    choices[row.choice].push_back(&row);
  }
  if (errors.empty()) return result;
  const auto count = static_cast<double>(errors.size());
  result.num_rows = static_cast<int64_t>(errors.size());
  result.median_error = quantile(errors, 0.5);
  result.p90_error = quantile(errors, 0.9);
  result.mean_error = std::accumulate(errors.begin(), errors.end(), 0.0) / count;
  result.bias /= count;
  result.covered /= count;
  for (const auto& [choice, plans] : choices) {
    if (plans.size() < 2) continue;
    const auto chosen = std::min_element(plans.begin(), plans.end(), [](const ForecastRow* a, const ForecastRow* b) {
      return a->predicted_seconds / a->samples < b->predicted_seconds / b->samples;
    });
    const auto best = std::min_element(plans.begin(), plans.end(), [](const ForecastRow* a, const ForecastRow* b) {
      return a->measured_seconds / a->samples < b->measured_seconds / b->samples;
    });
    const double regret = (*chosen)->measured_seconds / (*chosen)->samples / ((*best)->measured_seconds / (*best)->samples) - 1;
    ++result.num_choices;
    result.mean_regret += regret;
    result.max_regret = std::max(result.max_regret, regret);
  }
  if (result.num_choices > 0) result.mean_regret /= static_cast<double>(result.num_choices);
  return result;
}

}  // namespace cohort
