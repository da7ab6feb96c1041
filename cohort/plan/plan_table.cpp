#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

std::string row(const std::vector<std::string>& cells) {
  static constexpr int kWidths[] = {6, 6, 12, 10, 10, 10, 9, 10, 10};
  std::string out;
  for (size_t i = 0; i + 1 < cells.size(); ++i) {
    char cell[64];
    std::snprintf(cell, sizeof cell, "%*s  ", kWidths[std::min<size_t>(i, 8)], cells[i].c_str());
    out += cell;
  }
  return out + cells.back() + "\n";
}

/// "l0 ... l11 (12)"
std::string layers_text(const ModelProfile& profile, const std::vector<int>& layers) {
  if (layers.empty()) return "-";
  std::vector<std::string> names;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) ++end;
    const std::string &first = profile.layers[static_cast<size_t>(layers[i])].name,
                      &last = profile.layers[static_cast<size_t>(layers[end])].name;
    names.push_back(end == i ? first : end == i + 1 ? first + " " + last : concat(first, " ... ", last, " (", end - i + 1, ")"));
    i = end + 1;
  }
  return join(names, " | ");
}

/// Where ranks have devices of several kinds: how many have which, for a row has room for one.
std::string kinds_text(const Cluster& cluster, int num_ranks) {
  std::vector<int> ranks_of_kind(cluster.devices.size(), 0);
  for (int rank = 0; rank < num_ranks; ++rank) ++ranks_of_kind[static_cast<size_t>(cluster.device_of_rank(rank))];
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < ranks_of_kind.size(); ++kind)
    if (ranks_of_kind[kind] > 0) parts.push_back(concat(ranks_of_kind[kind], " '", cluster.devices[kind].name, "'"));
  return parts.size() < 2 ? "" : concat("devices      ", join(parts, ", "), "; a row of the table names the slowest of its ranks\n");
}

}  // namespace

std::string plan_table(const SearchRequest& request, const PlanAnswer& answer) {
  const RankedPlan& best = answer.best;
  const StepForecast& forecast = best.forecast;
  const Layout layout = layout_of(request.problem.profile, best);
  const bool is_uneven = !layout.shares.empty() && layout.shares != "equal";
  std::string out = concat("layout       ", to_text(layout), "\n");
  out += concat("ranks        ", layout.num_ranks(), " of ", request.problem.cluster.num_devices(), " devices of '",
                request.problem.cluster.name, "', a global batch of ", best.global_batch,
                is_uneven ? " in pieces of at most " : " in pieces of ", best.candidate.micro_batch(best.global_batch), "\n");
  if (const std::string kinds = kinds_text(request.problem.cluster, layout.num_ranks()); !kinds.empty()) out += kinds;
  out += concat("step         ", human_seconds(forecast.step_seconds), " (", human_seconds(forecast.low_seconds), " to ",
                human_seconds(forecast.high_seconds), "), ",
                std::round(static_cast<double>(best.global_batch) / forecast.step_seconds * 10) / 10, " samples a second\n");
  if (request.objective != Objective::kStepTime)
    out += concat("objective    ", objective_names()[static_cast<size_t>(request.objective)], ": ",
                  objective_text(request.objective, best.objective), "\n");
  if (layout.pp > 1)
    out += concat("pipeline     ", human_seconds(forecast.pipeline_seconds), ", of which ", std::round(1000 * forecast.bubble) / 10,
                  " % is the bubble\n");
  out += concat("search       ", answer.num_layouts, " layouts, ", answer.num_refused, " refused\n\n");
  out += row({"worker", "ranks", "device", "compute", "exposed", "update", "idle", "memory", "limit", "layers"});
  for (size_t worker = 0; worker < forecast.workers.size(); ++worker) {
    const WorkerForecast& its = forecast.workers[worker];
    out += row({concat(worker), concat(its.num_ranks), its.device.substr(0, 12), human_seconds(its.forward_seconds + its.backward_seconds),
                human_seconds(its.exposed_seconds), human_seconds(its.update_seconds),
                concat(std::round(1000 * its.idle_seconds / forecast.step_seconds) / 10, " %"), human_bytes(its.memory.total()),
                human_bytes(its.memory_limit), layers_text(request.problem.profile, its.layers)});
  }
  return out;
}

}  // namespace cohort
