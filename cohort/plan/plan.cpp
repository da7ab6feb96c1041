// Writes plan.json and reads its forecast.
#include "cohort/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/cost/step_forecast.h"
#include "cohort/plan/explain.h"
#include "cohort/record/run_event.h"
#include "cohort/schedule/schedule.h"

namespace cohort {
namespace {

/// First layers of all stages but the first, where stages are runs of layers on the workers of the named schedule; else empty.
std::string cuts_of(const Layout& layout, const StageAssignment& stages) {
  if (!std::is_sorted(stages.stage_of.begin(), stages.stage_of.end()) || !layout.is_even() || layout.schedule.ends_with(".json")) return "";
  const auto num_stages = stages.worker_of_stage.size();
  if (num_stages_of(layout.schedule, layout.pp) != static_cast<int>(num_stages)) return "";
  const auto ranks = ranks_of_stages(make_schedule(layout.schedule, {.num_ranks = layout.pp, .num_micro_batches = 1}));
  for (size_t stage = 0; stage < num_stages; ++stage)
    if (ranks[stage][0] != stages.worker_of_stage[stage]) return "";
  std::vector<std::string> cuts;
  for (size_t layer = 1; layer < stages.stage_of.size(); ++layer)
    if (stages.stage_of[layer] != stages.stage_of[layer - 1]) cuts.push_back(concat(layer));
  return join(cuts, "/");
}

Json to_json(const StepMemory& memory) {
  return {{"weights", memory.weights},   {"gradients", memory.gradients}, {"optimizer", memory.optimizer}, {"buffers", memory.buffers},
          {"buckets", memory.buckets},   {"stash", memory.stash},         {"recompute", memory.recompute}, {"working", memory.working},
          {"overhead", memory.overhead}, {"total", memory.total()}};
}

Json to_json(const WorkerForecast& worker, const ModelProfile& profile, std::vector<int> ranks) {
  Json layers = Json::array();
  for (const int layer : worker.layers) layers.push_back(profile.layers[static_cast<size_t>(layer)].name);
  return {{"num_ranks", worker.num_ranks},
          {"ranks", std::move(ranks)},
          {"device", worker.device},
          {"layers", std::move(layers)},
          {"forward_seconds", worker.forward_seconds},
          {"backward_seconds", worker.backward_seconds},
          {"tensor_exchange_seconds", worker.tensor_exchange_seconds},
          {"exchange_seconds", worker.exchange_seconds},
          {"exposed_exchange_seconds", worker.exposed_seconds},
          {"update_seconds", worker.update_seconds},
          {"idle_seconds", worker.idle_seconds},
          {"memory_bytes", to_json(worker.memory)},
          {"memory_limit_bytes", worker.memory_limit}};
}

Json summary(const ModelProfile& profile, const RankedPlan& plan) {
  return {{"layout", to_json(layout_of(profile, plan))},
          {"num_workers", plan.candidate.layout.num_ranks()},
          {"global_batch", plan.global_batch},
          {"objective", finite_json(plan.objective)},
          {"predicted_step_seconds", plan.forecast.step_seconds},
          {"interval", {plan.forecast.low_seconds, plan.forecast.high_seconds}},
          {"peak_memory_bytes", plan.forecast.peak_memory_bytes()}};
}

}  // namespace

Layout layout_of(const ModelProfile& profile, const RankedPlan& plan) {
  Layout layout = plan.candidate.layout;
  layout.recompute = recompute_text(plan.candidate.recompute);
  if (layout.precision.empty()) layout.precision = "fp32";
  layout.accumulate = std::max(1, layout.accumulate);
  if (layout.shares == "equal") layout.shares.clear();  // The meaning of a layout without shares.
  if (layout.pp == 1) return layout;
  const StageAssignment& stages = plan.candidate.stages;
  layout.split = cuts_of(layout, stages);
  if (!layout.split.empty()) return layout;
  layout.split = "auto";  // `stages` name the cut.
  const std::vector<int> degrees = layout.data_degrees();
  std::vector<LayoutStage> named(stages.worker_of_stage.size());
  for (size_t stage = 0; stage < named.size(); ++stage) {
    named[stage].worker = stages.worker_of_stage[stage];
    named[stage].dp = degrees[static_cast<size_t>(named[stage].worker)];
  }
  for (size_t layer = 0; layer < stages.stage_of.size(); ++layer)
    named[static_cast<size_t>(stages.stage_of[layer])].layers.push_back(profile.layers[layer].name);
  layout.stages = std::move(named);
  return layout;
}

std::vector<int> ranks_of_worker(const Plan& plan, int worker) {
  const Layout& layout = plan.answer.best.candidate.layout;
  const MeshPlacement places(layout, plan.request.problem.cluster);
  std::vector<int> ranks;
  for (int data = 0; data < places.degree(worker); ++data)
    for (int tensor = 0; tensor < layout.tp; ++tensor) ranks.push_back(places.rank(data, worker, tensor));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string interval_source(const Plan& plan) {
  const Layout& layout = plan.answer.best.candidate.layout;
  const ErrorInterval* const kept = plan.request.problem.intervals.of(layout, precision_of(layout));
  return kept ? "calibration: " + kept->from : "default";
}

Json to_json(const Plan& plan) {
  const ModelProfile& profile = plan.request.problem.profile;
  const RankedPlan& best = plan.answer.best;
  Json json{{"format", "cohort-plan"}, {"model", profile.model}, {"cluster", plan.request.problem.cluster.name}};
  json.update(summary(profile, best));
  json["interval_from"] = interval_source(plan);
  json["objective_name"] = objective_names()[static_cast<size_t>(plan.request.objective)];
  json["objective_interval"] = {finite_json(best.low), finite_json(best.high)};
  json["lower_bound"] = finite_json(plan.answer.lower_bound);
  json["bound_by"] = plan.answer.bound_by;
  json["optimal"] = plan.answer.optimal;
  json["complete"] = plan.answer.is_complete;
  json["bubble"] = best.forecast.bubble;
  json["pipeline_seconds"] = best.forecast.pipeline_seconds;
  Json workers = Json::array(), others = Json::array(), front = Json::array();
  for (size_t worker = 0; worker < best.forecast.workers.size(); ++worker)
    workers.push_back(to_json(best.forecast.workers[worker], profile, ranks_of_worker(plan, static_cast<int>(worker))));
  for (const RankedPlan& other : plan.answer.runners_up) {
    others.push_back(summary(profile, other));
    others.back()["why_not"] = why_not(plan.request, plan.answer, other);
  }
  for (const RankedPlan& other : plan.answer.front) front.push_back(summary(profile, other));
  if (const auto uneven = uneven_forecast(plan.request.problem, best)) json["uneven"] = to_json(*uneven);
  json["workers"] = std::move(workers);
  json["reasons"] = plan.reasons;
  if (plan.goal) json["goal"] = to_json(profile, *plan.goal);
  json["runners_up"] = std::move(others);
  json["front"] = std::move(front);
  return json;
}

namespace {

void check_seconds(double value, const char* key, const std::string& where) {
  if (!std::isnan(value) && (!(value > 0) || !std::isfinite(value)))
    fail(ErrorCode::kBadInput, where, ": '", key, "' is ", value, "; expected a number above 0");
}

/// Checks the shares and waste of plans on devices of different speed.
void check_uneven(const Json& plan, const std::string& where) {
  const std::string place = where + ": 'uneven'";
  const JsonLine its(plan["uneven"], place);
  for (const char* key : {"predicted_step_seconds", "predicted_equal_step_seconds"}) check_seconds(its.number(key), key, place);
  for (const char* key : {"predicted_waste", "predicted_equal_waste"})
    if (const double waste = its.number(key); waste < 0 || waste > 1)
      fail(ErrorCode::kBadInput, place, ": '", key, "' is ", waste, "; expected a share from 0 to 1");
  const std::vector<double> shares = its.numbers("shares");
  double sum = 0;
  for (const double share : shares) {
    if (!(share > 0 && share <= 1)) fail(ErrorCode::kBadInput, place, ": 'shares' has ", share, "; expected shares above 0, up to 1");
    sum += share;
  }
  if (!shares.empty() && !(std::abs(sum - 1) < 1e-6))
    fail(ErrorCode::kBadInput, place, ": 'shares' add up to ", sum, "; expected 1, one share a rank");
}

}  // namespace

std::optional<ForecastRecord> forecast_of_plan(const Json& plan, const std::string& source, const std::string& where) {
  if (!plan.is_object() || !plan.contains("predicted_step_seconds")) return std::nullopt;
  JsonLine(plan, where).count("peak_memory_bytes");  // Checked first, so that the error names the key of the plan.
  Json event{{"event", ForecastRecord::kEvent}, {"source", source}};
  for (const auto& [ours, theirs] : {std::pair("predicted_step_seconds", "predicted_step_seconds"), std::pair("interval", "interval"),
                                     std::pair("interval_from", "interval_from"),
                                     std::pair("predicted_peak_memory_bytes", "peak_memory_bytes"), std::pair("workers", "workers")})
    if (plan.contains(theirs)) event[ours] = plan[theirs];
  if (plan.contains("uneven") && !plan["uneven"].is_null()) {
    check_uneven(plan, where);
    for (const char* key : {"predicted_equal_waste", "predicted_equal_step_seconds"})
      if (plan["uneven"].contains(key)) event[key] = plan["uneven"][key];
  }
  ForecastRecord record = record_from<ForecastRecord>(event, where);
  if (!(record.predicted_step_seconds > 0) || !std::isfinite(record.predicted_step_seconds))
    fail(ErrorCode::kBadInput, where, ": 'predicted_step_seconds' is not a number above 0");
  if (!record.interval.empty() && !record.has_interval())
    fail(ErrorCode::kBadInput, where, ": 'interval' has ", record.interval.size(), " numbers; expected two");
  if (record.has_interval() && !(record.interval[0] >= 0 && record.interval[0] <= record.interval[1] && std::isfinite(record.interval[1])))
    fail(ErrorCode::kBadInput, where, ": 'interval' is ", record.interval[0], " to ", record.interval[1], "; expected two rising numbers");
  return record;
}

}  // namespace cohort
