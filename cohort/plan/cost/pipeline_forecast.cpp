#include "cohort/plan/cost/pipeline_forecast.h"

#include <algorithm>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/cost/cut_layers.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {
namespace {

std::vector<PipelineRecord::Stage> stages_of(const StageGraph& cut, const Profile& profile, const StageAssignment& stages,
                                             const std::vector<bool>& recompute) {
  const PipelineRecord::Stage nothing_yet{.forward_seconds = 0, .backward_input_seconds = 0, .backward_weight_seconds = 0};
  std::vector<PipelineRecord::Stage> out(static_cast<size_t>(cut.num_stages()), nothing_yet);
  for (size_t stage = 0; stage < out.size(); ++stage) out[stage].worker = stages.worker_of_stage.at(stage);
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    PipelineRecord::Stage& stage = out[static_cast<size_t>(cut.stage_of[layer])];
    const LayerProfile& one = profile.layers[layer];
    stage.layers.push_back(one.name);
    stage.forward_seconds += one.forward_seconds;
    // The second forward runs where backward reaches the layer: in the input part.
    stage.backward_input_seconds += one.backward_input_seconds + (!recompute.empty() && recompute[layer] ? one.forward_seconds : 0);
    stage.backward_weight_seconds += one.backward_weight_seconds;
  }
  return out;
}

StageCosts costs_of(const std::vector<PipelineRecord::Stage>& stages, const StageGraph& cut, const Profile& profile) {
  StageCosts costs;
  for (int stage = 0; stage < cut.num_stages(); ++stage) {
    const PipelineRecord::Stage& its = stages[static_cast<size_t>(stage)];
    // A stage that gets nothing from others owes no gradients: all of its backward is in the weight part (split_backward.h).
    const bool owes =
        std::any_of(cut.edges.begin(), cut.edges.end(), [&](const StageEdge& edge) { return edge.to == stage && !edge.values.empty(); });
    costs.forward.push_back(its.forward_seconds);
    costs.backward_input.push_back(owes ? its.backward_input_seconds : 0);
    costs.backward_weight.push_back(its.backward_weight_seconds + (owes ? 0 : its.backward_input_seconds));
  }
  costs.transfer = [&cut, &profile](int from, int to) {
    int64_t bytes = 0;
    for (const StageEdge& edge : cut.edges)
      if (edge.from == std::min(from, to) && edge.to == std::max(from, to))
        for (const int value : edge.values) bytes += profile.layers[static_cast<size_t>(value)].output_bytes;
    return profile.transfer_seconds(bytes);
  };
  return costs;
}

/// The schedule that ranks will run, as the runner makes it. Pipelines side by side are alike, so one of them stands for all.
Schedule schedule_of(const Layout& layout, const StageGraph& cut, const StageAssignment& stages) {
  std::vector<std::vector<int>> ranks_of_worker, ranks_of_stage;
  int next = 0;
  for (const int degree : layout.data_degrees()) {
    ranks_of_worker.emplace_back();
    for (int replica = 0; replica < (layout.is_even() ? 1 : degree); ++replica) ranks_of_worker.back().push_back(next++);
  }
  for (const int worker : stages.worker_of_stage) ranks_of_stage.push_back(ranks_of_worker.at(static_cast<size_t>(worker)));
  Schedule schedule = Scheduler(layout, cut.stage_edges(), std::move(ranks_of_stage), stages.seconds)(layout.microbatches);
  schedule.edges = cut.stage_edges();
  return schedule;
}

std::string milliseconds(double seconds) {
  char out[40];
  std::snprintf(out, sizeof out, "%.3f", 1e3 * seconds);
  return out;
}

}  // namespace

StageSeconds ordering_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                              const std::vector<bool>& recompute) {
  if (!layout.schedule.starts_with("zb") || layout.schedule.ends_with(".json") || shares_weights_on_a_worker(profile.tied, stages))
    return {};
  const StageGraph cut = cut_profile(profile, stages.stage_of);
  const StageCosts costs = costs_of(stages_of(cut, profile, stages, recompute), cut, profile);
  return {costs.forward, costs.backward_input, costs.backward_weight};
}

PipelineRecord forecast_pipeline(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                                 const std::vector<bool>& recompute) {
  const StageGraph cut = cut_profile(profile, stages.stage_of);
  PipelineRecord forecast;
  forecast.schedule = layout.schedule;
  forecast.micro_batches = layout.microbatches;
  forecast.stages = stages_of(cut, profile, stages, recompute);
  const Timeline timeline = simulate(schedule_of(layout, cut, stages), costs_of(forecast.stages, cut, profile));
  forecast.predicted_step_seconds = timeline.makespan;
  forecast.predicted_bubble = timeline.bubble;
  forecast.chart_svg = timeline_svg_of_seconds(timeline);
  return forecast;
}

double forecast_step_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                             const std::vector<bool>& recompute) {
  const StageGraph cut = cut_profile(profile, stages.stage_of);
  return simulate(schedule_of(layout, cut, stages), costs_of(stages_of(cut, profile, stages, recompute), cut, profile)).makespan;
}

std::string describe(const PipelineRecord& forecast) {
  std::string out;
  for (size_t stage = 0; stage < forecast.stages.size(); ++stage) {
    const PipelineRecord::Stage& its = forecast.stages[stage];
    out += concat("stage ", stage, " on worker ", its.worker.value_or(0), ": forward ", milliseconds(its.forward_seconds), " ms, backward ",
                  milliseconds(its.backward_input_seconds + its.backward_weight_seconds), " ms; ", join(its.layers, " "), "\n");
  }
  return out;
}

}  // namespace cohort
