#include "cohort/train/run_forecast.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/train/run_setup.h"

namespace cohort {
namespace {

/// This run as a candidate of the planner.
Candidate candidate_of(const RunSetup& run) {
  Candidate candidate{.layout = run.job.layout, .stages = run.parallel.plan.stages, .recompute = run.parallel.plan.recompute};
  candidate.layout.accumulate = std::max(1, run.config.accumulate);
  candidate.layout.precision = run.config.precision;
  // Shares that are balanced while it trains begin equal.
  candidate.layout.shares = run.job.shares.automatic || run.config.shares == "equal" ? "" : run.config.shares;
  return candidate;
}

/// A plan with the layout of the run as its only candidate.
Plan plan_of(const ForecastSource& source, Candidate candidate, const StepForecast& forecast) {
  Plan plan;
  plan.request.problem = *source.problem;
  RankedPlan& best = plan.answer.best;
  best.global_batch = source.problem->global_batch;
  best.forecast = forecast;
  best.objective = forecast.step_seconds, best.low = forecast.low_seconds, best.high = forecast.high_seconds;
  best.candidate = std::move(candidate);
  plan.answer.bound_by = "nothing was searched";
  plan.reasons = {"this layout was asked for; its forecast is from " + source.name};
  return plan;
}

RunForecast forecast_from_profile(const RunSetup& run) {
  if (!is_step(run.job.layout.sync))
    fail(ErrorCode::kBadInput, name_settings("only sync=step is forecast, and --layout has sync="), run.job.layout.sync,
         name_settings("; leave --profile out"));
  const ForecastSource& source = run.options.forecast;
  Candidate candidate = candidate_of(run);
  StepForecast forecast = forecast_step(*source.problem, candidate, /*with_timeline=*/true);
  RunForecast out{.record = {}, .timeline = std::move(forecast.timeline), .plan = source.plan};
  if (out.plan.is_null()) out.plan = to_json(plan_of(source, std::move(candidate), forecast));
  out.record = forecast_of_plan(out.plan, source.name, "the forecast").value();
  return out;
}

int64_t peak_of(const std::vector<RankRecord>& ranks) {
  int64_t peak = 0;
  for (const RankRecord& rank : ranks) peak = std::max(peak, rank.peak_tensor_bytes.value_or(rank.peak_memory_bytes.value_or(0)));
  return peak;
}

}  // namespace

void check_profile(const ForecastSource& source, const LayerGraph& model) {
  if (!source.problem || !source.plan.is_null()) return;  // A plan's profile is of this model.
  const std::vector<ProfiledLayer>& layers = source.problem->profile.layers;
  const std::vector<LayerGraph::Layer>& own = model.layers();
  for (size_t i = 0; i < std::max(layers.size(), own.size()); ++i) {
    const std::string theirs = i < layers.size() ? layers[i].name : "none", mine = i < own.size() ? own[i].name : "none";
    if (theirs != mine)
      fail(ErrorCode::kBadInput, source.name, " is of another model: its layer ", i, " is ", theirs, ", and that of ", model.title(),
           " is ", mine, "; measure this one into another file");
  }
  int64_t profiled = 0, elements = 0;
  for (const ProfiledLayer& layer : layers) profiled += layer.num_trained + layer.num_frozen;
  for (const NamedTensor& parameter : distinct_parameters(model)) elements += parameter.tensor.numel();
  if (profiled != elements)
    fail(ErrorCode::kBadInput, source.name, " is of another model: it has ", with_commas(profiled), " parameters, and ", model.title(),
         " has ", with_commas(elements), "; measure this one into another file");
}

std::optional<RunForecast> make_forecast(RunSetup& run) {
  const ForecastSource& source = run.options.forecast;
  std::optional<RunForecast> out;
  if (!source.problem) {
    if (run.is_first() && !source.plan.is_null())
      if (std::optional<ForecastRecord> record = forecast_of_plan(source.plan, source.name, source.name))
        out = RunForecast{.record = std::move(*record), .timeline = {}, .plan = source.plan};
    return out;
  }
  std::string failure;
  if (run.is_first()) {
    try {
      out = forecast_from_profile(run);
    } catch (const Error& error) {
      failure = concat("no forecast of this run from ", source.name, ": ", error.what());
    }
  }
  failure = run.group.all_gather_text(failure, "the forecast").front();
  if (!failure.empty()) fail(ErrorCode::kBadInput, failure);
  return out;
}

std::string forecast_sentence(const ForecastRecord& forecast) {
  std::string text = concat("forecast from ", forecast.source, ": a step of ", human_seconds(forecast.predicted_step_seconds));
  if (forecast.has_interval())
    text += concat(", in 90 of 100 cases ", human_seconds(forecast.interval[0]), " to ", human_seconds(forecast.interval[1]), " (",
                   forecast.interval_from == "default" ? "the default interval" : forecast.interval_from, ")");
  if (forecast.predicted_peak_memory_bytes)
    text += concat("; ", human_bytes(*forecast.predicted_peak_memory_bytes), " on the fullest rank");
  return text;
}

std::string outcome_sentence(const ForecastRecord& forecast, double measured) {
  std::string text = concat("a step took ", human_seconds(measured), ", forecast ", human_seconds(forecast.predicted_step_seconds));
  if (!forecast.has_interval()) return text;
  const bool is_inside = measured >= forecast.interval[0] && measured <= forecast.interval[1];
  return concat(text, is_inside ? ", inside" : ", outside", " of its interval");
}

void append_forecast_error(const RunSetup& run, double measured_step_seconds, int64_t num_steps, const std::vector<RankRecord>& ranks) {
  const ForecastSource& source = run.options.forecast;
  if (!run.forecast || source.calibration_file.empty() || !source.is_measured_here || num_steps < kLeastStepsThatCount) return;
  if (!run.config.inject.empty() || run.noise) return;  // Not at its normal speed.
  const std::string failure =
      append_calibration(source.calibration_file, {.model = run.config.model,
                                                   .parameters = run.parallel.num_parameters,
                                                   .layout_class = layout_class(run.job.layout),
                                                   .precision = run.config.precision,
                                                   .workers = run.world.size,
                                                   .global_batch = run.config.global_batch,
                                                   .steps = num_steps,
                                                   .predicted_step_seconds = run.forecast->record.predicted_step_seconds,
                                                   .measured_step_seconds = measured_step_seconds,
                                                   .predicted_peak_bytes = run.forecast->record.predicted_peak_memory_bytes.value_or(0),
                                                   .measured_peak_bytes = peak_of(ranks)});
  if (!failure.empty()) log_info(concat("the forecast's error is not kept for the next interval: ", failure));
}

}  // namespace cohort
