#include "cohort/plan/cost/pipeline_forecast.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

StageGraph cut_profile(const Profile& profile, std::vector<int> stage_of) {
  if (stage_of.size() != profile.layers.size())
    fail(ErrorCode::kBadInput, "stages for ", stage_of.size(), " layers, and the profile has ", profile.layers.size());
  std::vector<std::pair<int, int>> tied;
  for (const auto& [owner, user] : profile.tied) {
    const std::pair<int, int> stages{stage_of[static_cast<size_t>(owner)], stage_of[static_cast<size_t>(user)]};
    if (stages.first > stages.second)
      fail(ErrorCode::kBadInput, "stages: the weight that '", profile.layers[static_cast<size_t>(owner)].name, "' of stage ", stages.first,
           " shares is used by '", profile.layers[static_cast<size_t>(user)].name, "' of the earlier stage ", stages.second,
           "; put the two into one stage");
    if (stages.first != stages.second) tied.push_back(stages);
  }
  return cut_layers(profile.edges, tied, std::move(stage_of), [&](int layer) { return profile.layers[static_cast<size_t>(layer)].name; });
}

StageWork work_of_stage(const Profile& profile, const std::vector<int>& layers, const std::vector<bool>& recompute) {
  StageWork work;
  for (const int layer : layers) {
    const LayerProfile& cost = profile.layers[static_cast<size_t>(layer)];
    const bool again = !recompute.empty() && recompute[static_cast<size_t>(layer)];
    work.forward += cost.forward_seconds;
    // The second forward runs where backward reaches the layer: in the input part.
    work.backward_input += cost.backward_input_seconds + (again ? cost.forward_seconds : 0);
    work.backward_weight += cost.backward_weight_seconds;
  }
  return work;
}

Handovers::Handovers(const StageGraph& graph) {
  for (const StageEdge& edge : graph.edges) {
    values_of_[{edge.from, edge.to}] = &edge.values;
    if (!edge.values.empty()) receives_.insert(edge.to);
  }
}

int64_t Handovers::bytes(int from, int to, const Profile& profile) const {
  int64_t bytes = 0;
  if (const auto found = values_of_.find({std::min(from, to), std::max(from, to)}); found != values_of_.end())
    for (const int value : *found->second) bytes += profile.layers[static_cast<size_t>(value)].output_bytes;
  return bytes;
}

void set_costs(StageCosts& costs, int stage, const StageWork& work, bool receives) {
  const auto at = static_cast<size_t>(stage);
  costs.forward[at] = work.forward;
  costs.backward_input[at] = receives ? work.backward_input : 0;
  costs.backward_weight[at] = work.backward_weight + (receives ? 0 : work.backward_input);
}

namespace {

/// A cut with what its stages cost.
struct CostedCut {
  CostedCut(const Profile& profile, const StageAssignment& stages, const std::vector<bool>& recompute)
      : cut(cut_profile(profile, stages.stage_of)), handovers(cut) {
    const auto num_stages = static_cast<size_t>(cut.num_stages());
    costs.forward.resize(num_stages), costs.backward_input.resize(num_stages), costs.backward_weight.resize(num_stages);
    for (int stage = 0; stage < cut.num_stages(); ++stage) {
      work.push_back(work_of_stage(profile, cut.layers[static_cast<size_t>(stage)], recompute));
      set_costs(costs, stage, work.back(), handovers.receives(stage));
    }
    costs.transfer = [this, &profile](int from, int to) { return profile.transfer_seconds(handovers.bytes(from, to, profile)); };
  }
  CostedCut(const CostedCut&) = delete;
  CostedCut& operator=(const CostedCut&) = delete;

  const StageGraph cut;
  const Handovers handovers;
  std::vector<StageWork> work;  ///< One per stage.
  StageCosts costs;
};

std::vector<PipelineRecord::Stage> stages_of(const CostedCut& of, const Profile& profile, const StageAssignment& stages) {
  std::vector<PipelineRecord::Stage> out;
  for (size_t stage = 0; stage < of.work.size(); ++stage) {
    PipelineRecord::Stage its{.forward_seconds = of.work[stage].forward,
                              .backward_input_seconds = of.work[stage].backward_input,
                              .backward_weight_seconds = of.work[stage].backward_weight};
    its.worker = stages.worker_of_stage.at(stage);
    for (const int layer : of.cut.layers[stage]) its.layers.push_back(profile.layers[static_cast<size_t>(layer)].name);
    out.push_back(std::move(its));
  }
  return out;
}

Timeline timeline_of(const CostedCut& of, const Layout& layout, const StageAssignment& stages) {
  return simulate(schedule_of(layout, of.cut, stages.worker_of_stage, stages.seconds, layout.microbatches), of.costs);
}

std::string milliseconds(double seconds) {
  char out[40];
  std::snprintf(out, sizeof out, "%.3f", 1e3 * seconds);
  return out;
}

}  // namespace

bool order_follows_costs(const std::vector<std::pair<int, int>>& tied, const Layout& layout, const StageAssignment& stages) {
  return layout.schedule.starts_with("zb") && !layout.schedule.ends_with(".json") && !shares_weights_on_a_worker(tied, stages);
}

StageSeconds ordering_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                              const std::vector<bool>& recompute) {
  if (!order_follows_costs(profile.tied, layout, stages)) return {};
  const CostedCut cut(profile, stages, recompute);
  return {cut.costs.forward, cut.costs.backward_input, cut.costs.backward_weight};
}

PipelineRecord forecast_pipeline(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                                 const std::vector<bool>& recompute) {
  const CostedCut of(profile, stages, recompute);
  PipelineRecord forecast;
  forecast.schedule = layout.schedule;
  forecast.micro_batches = layout.microbatches;
  forecast.stages = stages_of(of, profile, stages);
  const Timeline timeline = timeline_of(of, layout, stages);
  forecast.predicted_step_seconds = timeline.makespan;
  forecast.predicted_bubble = timeline.bubble;
  forecast.chart_svg = timeline_svg_of_seconds(timeline);
  return forecast;
}

double forecast_step_seconds(const Profile& profile, const Layout& layout, const StageAssignment& stages,
                             const std::vector<bool>& recompute) {
  return timeline_of(CostedCut(profile, stages, recompute), layout, stages).makespan;
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
