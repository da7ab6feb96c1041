#pragma once
// What a run's step was expected to cost, and what becomes of it: an event of metrics, plan.json, a line for the next forecast's interval,
// lanes of trace.json.

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
struct TrainResult;
class LayerGraph;

/// What TrainOptions say of the forecast: one of the two, or neither.
struct ForecastSource {
  std::string name;                    ///< "--profile FILE": how the run calls it.
  std::optional<PlanProblem> problem;  ///< What is trained is forecast from this profile of the machine, on rank 0.
  Json plan;                           ///< Else the forecast of this plan.json stands; null: none.
  bool is_of_here = false;             ///< Made from measurements of this machine, so its error says something of the next.
  std::string calibration_file;        ///< Where that error goes; "": nowhere.
};

struct RunForecast {
  ForecastRecord record;
  Timeline timeline;  ///< Of one pass through the pipeline; empty where there is none.
  Json plan;          ///< plan.json.
};

/// Error(kBadInput) where the profile is of other layers than the model's.
void check_profile(const ForecastSource& source, const LayerGraph& model);

/// Of the run as it was set up: its own cut and recomputed layers. Collective where the source has a problem; only rank 0 gets one. Error
/// on all ranks: kBadInput where the profile has nothing for this layout or precision.
std::optional<RunForecast> make_forecast(RunSetup& run);

/// "forecast: a step takes ..."
std::string forecast_sentence(const ForecastRecord& forecast);
/// "a step took ..., inside the forecast's interval".
std::string outcome_sentence(const ForecastRecord& forecast, double measured_step_seconds);

/// Appends the forecast's error to the calibration file, where it has one and the run says something: long enough, at its own speed.
void keep_error(const RunSetup& run, double measured_step_seconds, int64_t num_steps, const std::vector<RankRecord>& ranks);

}  // namespace cohort
