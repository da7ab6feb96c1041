// The pipeline of a run: the forecast (the schedule, simulated with the layers' measured times) beside what the run then measured, the
// schedule as a chart, and what each stage got.

#include <cmath>
#include <string>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/plain_svg.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

/// Waiting for other ranks / (waiting + computing), over all ranks.
double measured_idle(const RunRecord& run) {
  double waited = 0, busy = 0;
  for (const RankRecord& rank : run.ranks) {
    waited += rank.exchange_seconds;
    busy += rank.compute_seconds;
  }
  return waited + busy > 0 ? waited / (waited + busy) : kUnknown;
}

/// Of a step, without data and update: what the forecast is of. Rank 0's.
double measured_pass(const RunRecord& run, const Summary& summary) {
  if (run.ranks.empty() || summary.steps_of_last_process <= 0) return kUnknown;
  const RankRecord& first = run.ranks.front();
  return (first.compute_seconds + first.exchange_seconds) / static_cast<double>(summary.steps_of_last_process);
}

/// Of forwards and backwards. A forecast of the whole step has exchange and update in it; without one the end of the run tells that of all
/// micro-steps, and before the end there is that of one.
double forecast_pass(const RunRecord& run, const Summary& summary) {
  if (run.forecast && !run.forecast->workers.empty()) {
    const ForecastRecord::Worker& first = run.forecast->workers.front();
    return first.forward_seconds + first.backward_seconds + first.idle_seconds;
  }
  return std::isfinite(summary.predicted_step_seconds) ? summary.predicted_step_seconds : run.pipeline->predicted_step_seconds;
}

std::string comparison(const RunRecord& run, const Summary& summary) {
  const PipelineRecord& pipeline = *run.pipeline;
  const double forecast = forecast_pass(run, summary);
  Table list;
  list.columns = {{"", false}, {"forecast", true}, {"measured", true}};
  list.rows.push_back({"forwards and backwards of a step", escape_html(milliseconds_text(forecast)),
                       escape_html(milliseconds_text(measured_pass(run, summary)))});
  list.rows.push_back({"idle", escape_html(percent_text(pipeline.predicted_bubble)), escape_html(percent_text(measured_idle(run)))});
  return table(list, "Forecast and measurement");
}

std::string stage_table(const PipelineRecord& pipeline) {
  Table list;
  list.columns = {{"stage", false}, {"worker", true}, {"forward", true}, {"backward, inputs", true}, {"backward, weights", true},
                  {"layers", false}};
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    const PipelineRecord::Stage& its = pipeline.stages[stage];
    list.rows.push_back({std::to_string(stage), escape_html(count_text(its.worker)), escape_html(milliseconds_text(its.forward_seconds)),
                         escape_html(milliseconds_text(its.backward_input_seconds)),
                         escape_html(milliseconds_text(its.backward_weight_seconds)), layer_names(its.layers)});
  }
  return table(list, "Stages");
}

}  // namespace

std::string pipeline_section(const RunRecord& run, const Summary& summary) {
  if (!run.pipeline || run.pipeline->stages.empty()) return "";
  const PipelineRecord& pipeline = *run.pipeline;
  std::string intro = "Schedule " + pipeline.schedule;
  if (pipeline.micro_batches)
    intro += " with " + count_text(pipeline.micro_batches) + (*pipeline.micro_batches == 1 ? " micro-batch" : " micro-batches");
  intro +=
      ". The forecast simulates it with each layer's time, measured alone before the run; idle is waiting for other ranks. "
      "Times of stages are those of one micro-batch.";
  std::string chart;
  if (is_plain_svg(pipeline.chart_svg))
    chart = element("div", {{"class", "scroll timeline"}, {"tabindex", "0"}, {"role", "region"}, {"aria-label", "The schedule, simulated"}},
                    pipeline.chart_svg) +
            "\n";
  return section("pipeline", "Pipeline", intro, comparison(run, summary) + chart + stage_table(pipeline));
}

}  // namespace cohort::report
