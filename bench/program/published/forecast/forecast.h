#pragma once
// Forecasts of published steps beside their measurements, by constants of a machine that are fitted to some of these (forecast.cpp).

#include <cstdint>
#include <string>
#include <vector>

#include "bench/program/published/forecast/public_runs.h"
#include "bench/program/published/forecast/transformer_step.h"

namespace cohort {

struct FittedMachine {
  Machine machine;
  /// 90 % of further runs should take from `low` to `high` times their forecast.
  double low = 0, high = 0;
};

/// `start` holds the prior constants: those that the runs do not determine stay there, all of them with fewer than ten runs.
/// Error(kBadInput) for a measured time that is not positive, or an invalid run (transformer_step_seconds).
FittedMachine fit_machine(const std::vector<MeasuredRun>& runs, const Machine& start);

struct ForecastRow {
  int64_t row = 0;
  double predicted_seconds = 0, measured_seconds = 0;
  double low_seconds = 0, high_seconds = 0;  ///< 90 % of steps are expected between them.
  bool was_fitted = false;                   ///< Its measurement was used for the constants, so its error proves nothing.
  std::string choice;
  double samples = 1;
};

/// Errors over the rows that were not fitted.
struct ForecastErrors {
  int64_t num_rows = 0;
  double median_error = 0, p90_error = 0, mean_error = 0;  ///< Statistics of |predicted / measured - 1|.
  double bias = 0;                                         ///< Mean of predicted / measured - 1.
  double covered = 0;                                      ///< Fraction of rows inside of their interval.
  int64_t num_choices = 0;                                 ///< Choices of two plans or more.
  double mean_regret = 0, max_regret = 0;                  ///< Measured time of the plan that is predicted best / the best measured - 1.
};

/// Every run's forecast; the constants of each machine come from `fraction` (0 to 0.5) of its rows, drawn with a fixed seed, which are the
/// same whenever the table is. 0: from what is known of the machine.
std::vector<ForecastRow> forecast_public_runs(const std::vector<PublicRun>& runs, double fraction);
ForecastErrors errors_of(const std::vector<ForecastRow>& rows);

}  // namespace cohort
