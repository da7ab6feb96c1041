// 1. Runs of one machine are put in a random order (a fixed seed); the first `fraction` of them fit its constants.
// 2. Errors, and the regret of the choices, are those of the others: the plan that is predicted fastest among the plans of one training
// that
//    were not fitted, against the fastest of these.

#include "cohort/plan/forecast/forecast_errors.h"

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

constexpr uint64_t kSeed = 1;

/// Which of the runs fit: of each machine's.
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
