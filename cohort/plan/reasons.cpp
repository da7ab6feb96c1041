#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/uneven.h"

namespace cohort {
namespace {

const WorkerForecast& slowest_of(const StepForecast& forecast) {
  return *std::max_element(forecast.workers.begin(), forecast.workers.end(), [](const WorkerForecast& a, const WorkerForecast& b) {
    return a.exposed_seconds + a.update_seconds + a.forward_seconds + a.backward_seconds <
           b.exposed_seconds + b.update_seconds + b.forward_seconds + b.backward_seconds;
  });
}

std::string where_time_goes(const StepForecast& forecast) {
  const WorkerForecast& worker = slowest_of(forecast);
  const double step = forecast.step_seconds;
  std::vector<std::pair<double, std::string>> parts = {
      {(worker.forward_seconds + worker.backward_seconds - worker.tensor_exchange_seconds) / step, "computing"},
      {worker.tensor_exchange_seconds / step, "exchanges of divided layers"},
      {worker.exposed_seconds / step, "exchange of gradients and weights that nothing hides"},
      {worker.update_seconds / step, "the update"},
      {worker.idle_seconds / step, "waiting for others"}};
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> said;
  for (const auto& [share, what] : parts)
    if (share >= 0.005) said.push_back(concat(percent(share), " ", what));
  return concat("the busiest worker spends its step on ", join(said, ", "));
}

std::string where_memory_goes(const StepForecast& forecast) {
  const WorkerForecast& worker = forecast.tightest_worker();
  const StepMemory& memory = worker.memory;
  const std::vector<std::pair<int64_t, std::string>> parts = {{memory.weights + memory.gradients, "weights and gradients"},
                                                              {memory.optimizer, "the optimizer's state"},
                                                              {memory.stash + memory.recompute + memory.working, "activations"},
                                                              {memory.buckets, "buckets of the exchange"},
                                                              {memory.overhead, "the allocator and the process"}};
  const auto most = std::max_element(parts.begin(), parts.end());
  const double used = static_cast<double>(memory.total()) / static_cast<double>(std::max<int64_t>(1, worker.memory_limit));
  return concat("the fullest rank holds ", human_bytes(memory.total()), " of ", human_bytes(worker.memory_limit), " (", percent(used),
                "), most of it ", most->second, used > 0.9 ? ": memory binds" : "");
}

std::string certificate(const SearchRequest& request, const PlanAnswer& answer) {
  const std::string bound = objective_text(request.objective, answer.lower_bound);
  if (answer.optimal) return concat("no plan is better than ", bound, ": proved (", answer.bound_by, ")");
  const double gap = answer.best.objective / std::max(answer.lower_bound, 1e-300) - 1;
  return concat("no plan is below ", bound, " (", answer.bound_by, "), so this one is at most ", percent(gap), " from the best",
                answer.is_complete ? "" : "; the search was cut short");
}

}  // namespace

std::string why_not(const SearchRequest& request, const PlanAnswer& answer, const RankedPlan& other) {
  const RankedPlan& best = answer.best;
  const bool to_goal = request.objective == Objective::kTimeToGoal;
  const std::string name =
      concat(to_text(layout_of(request.problem.profile, other)), to_goal ? concat(" with a batch of ", other.global_batch) : std::string());
  const double slower = other.objective / best.objective - 1;
  const int64_t more = other.forecast.peak_memory_bytes() - best.forecast.peak_memory_bytes();
  const std::string memory = more < 0   ? concat(", but ", human_bytes(-more), " less memory a rank")
                             : more > 0 ? concat(" and ", human_bytes(more), " more memory a rank")
                                        : "";
  if (slower <= kNoiseFloor)
    return concat("tied with ", name, ": ", percent(slower), " behind, less than two measurements of one plan differ (",
                  percent(kNoiseFloor), ")", memory);
  // Of one batch both need the same steps, known or not.
  const bool overlaps = to_goal && other.global_batch == best.global_batch ? other.forecast.low_seconds <= best.forecast.high_seconds
                                                                           : other.low <= best.high;
  if (overlaps) return concat("tied with ", name, ": ", percent(slower), " behind, where the intervals of the forecasts overlap", memory);
  return concat(name, " lost: ", percent(slower), " behind", memory);
}

std::string objective_text(Objective objective, double value) {
  if (objective == Objective::kMemory) return human_bytes(static_cast<int64_t>(value));
  return concat(human_seconds(value), objective == Objective::kThroughput ? " a sample" : "");
}

/// Why stages differ in size; empty where devices do not differ in speed.
std::string why_stages_differ(const SearchRequest& request, const RankedPlan& plan) {
  constexpr size_t kMostWorkers = 8;  // The table has them all.
  const Layout& layout = plan.candidate.layout;
  if (layout.pp < 2 || !first_devices(request.problem.cluster, layout.num_ranks()).is_mixed()) return "";
  std::vector<std::string> parts;
  for (const WorkerForecast& its : plan.forecast.workers) {
    if (parts.size() == kMostWorkers) {
      parts.emplace_back("...");
      break;
    }
    parts.push_back(concat("worker ", parts.size(), " ('", its.device, "') ", its.layers.size(),
                           its.layers.size() == 1 ? " layer, " : " layers, ", human_seconds(its.forward_seconds + its.backward_seconds)));
  }
  return "devices are not equally fast, so layers are dealt out by their seconds on each: " + join(parts, "; ");
}

std::vector<std::string> reasons_of(const SearchRequest& request, const PlanAnswer& answer) {
  const Layout& layout = answer.best.candidate.layout;
  std::vector<std::string> reasons = {certificate(request, answer), where_time_goes(answer.best.forecast),
                                      where_memory_goes(answer.best.forecast)};
  if (const auto uneven = uneven_forecast(request.problem, answer.best)) reasons.push_back(sentence_of(*uneven));
  if (std::string stages = why_stages_differ(request, answer.best); !stages.empty()) reasons.push_back(std::move(stages));
  const int devices = request.num_workers > 0 ? std::min(request.num_workers, request.problem.cluster.num_devices())
                                              : request.problem.cluster.num_devices();
  if (layout.num_ranks() < devices)
    reasons.push_back(concat(layout.num_ranks(), " of ", devices, " devices are used: no plan that was found with more is better"));
  if (layout.dp > 1 && layout.zero == 0 && answer.best.forecast.workers.front().memory.weights > 0 && !layout.is_model_parallel())
    reasons.emplace_back("the model fits a device, so its replicas need nothing but the exchange of gradients");
  for (const RankedPlan& other : answer.runners_up) reasons.push_back(why_not(request, answer, other));
  return reasons;
}

}  // namespace cohort
