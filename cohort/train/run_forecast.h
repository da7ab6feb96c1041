#pragma once
// The forecast of a run's step, for its metrics, plan.json and trace.json, and its error, which calibrates the next forecast's interval.

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json.h"
#include "cohort/plan/cost/step_forecast.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/record/end_records.h"
#include "cohort/record/forecast_record.h"

namespace cohort {

struct RunSetup;
class LayerGraph;

/// Where the forecast comes from: a profile, a plan, or neither.
struct ForecastSource {
  std::string name;                    ///< For messages: "--profile FILE".
  std::optional<PlanProblem> problem;  ///< With a profile of this machine, from which rank 0 forecasts the run.
  Json plan;                           ///< Otherwise the plan.json whose forecast is used; null: none.
  bool is_measured_here = false;       ///< Measured on this machine, so that its error can be used for calibration.
  std::string calibration_file;        ///< The error is appended to it; "": nowhere.
};

struct RunForecast {
  ForecastRecord record;
  Timeline timeline;  ///< One pass through the pipeline; empty without one.
  Json plan;          ///< plan.json.
};

/// Error(kBadInput) if the profile has other layers than the model.
void check_profile(const ForecastSource& source, const LayerGraph& model);

/// Forecasts the run as it was set up, on rank 0. Collective if the source has a problem. Error(kBadInput) on all ranks if the profile does
/// not have this layout or precision.
std::optional<RunForecast> make_forecast(RunSetup& run);

std::string forecast_sentence(const ForecastRecord& forecast);
std::string outcome_sentence(const ForecastRecord& forecast, double measured_step_seconds);

/// Appends the forecast's error to the calibration file, if the run was long enough and not slowed down by a fault or a measurement.
void append_forecast_error(const RunSetup& run, double measured_step_seconds, int64_t num_steps, const std::vector<RankRecord>& ranks);

}  // namespace cohort
