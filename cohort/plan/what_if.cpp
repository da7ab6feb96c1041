#include <algorithm>
#include <cmath>
#include <optional>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

constexpr int64_t kGiB = INT64_C(1) << 30;

struct Change {
  std::string name;
  SearchRequest request;
};

void scale_links(Links& links, double factor) {
  for (Link& link : links.by_exchange) link.bytes_per_second *= factor;
}
void set_links(Links& links, double bytes_per_second) {
  for (Link& link : links.by_exchange) link.bytes_per_second = bytes_per_second;
}

void scale_memory(PlanProblem& problem, double factor, int64_t more) {
  for (DeviceKind& device : problem.cluster.devices)
    device.memory_bytes = static_cast<int64_t>(factor * static_cast<double>(device.memory_bytes)) + more;
  if (problem.memory_limit_bytes > 0)
    problem.memory_limit_bytes = static_cast<int64_t>(factor * static_cast<double>(problem.memory_limit_bytes)) + more;
}

std::vector<Change> changes_of(const SearchRequest& request) {
  std::vector<Change> changes;
  const auto add = [&](const std::string& name, const auto& change) {
    changes.push_back({name, request});
    change(changes.back().request);
  };
  const Cluster& cluster = request.problem.cluster;
  const bool many_hosts = cluster.host_of_rank(cluster.num_devices() - 1) > 0;
  const Links& links = many_hosts ? cluster.across : cluster.inside;
  const bool limited =
      std::any_of(links.by_exchange.begin(), links.by_exchange.end(), [](const Link& l) { return l.bytes_per_second > 0; });
  const auto links_of = [many_hosts](SearchRequest& changed) -> Links& {
    return many_hosts ? changed.problem.cluster.across : changed.problem.cluster.inside;
  };
  const std::string where = many_hosts ? "links between hosts" : "links inside of the host";
  if (cluster.num_devices() > 1) {
    if (many_hosts) add(where + " at 10 Gbit/s", [&](SearchRequest& r) { set_links(links_of(r), 1.25e9); });
    if (limited) {  // Half of no limit is none.
      add(where + " at half their rate", [&](SearchRequest& r) { scale_links(links_of(r), 0.5); });
      add(where + " at twice their rate", [&](SearchRequest& r) { scale_links(links_of(r), 2); });
    }
  }
  add("2 GiB more memory a device", [](SearchRequest& r) { scale_memory(r.problem, 1, 2 * kGiB); });
  add("twice the memory", [](SearchRequest& r) { scale_memory(r.problem, 2, 0); });
  const int devices = request.num_workers > 0 ? std::min(request.num_workers, cluster.num_devices()) : cluster.num_devices();
  // Where each number of workers was measured, the fewer have a machine of their own.
  if (devices / 2 >= request.least_workers) add("half the devices", [&](SearchRequest& r) { r.num_workers = devices / 2; });
  add("twice the devices", [&](SearchRequest& r) {
    if (2 * devices > cluster.num_devices())
      for (HostGroup& group : r.problem.cluster.hosts) (group.num_hosts > 1 || many_hosts ? group.num_hosts : group.devices_per_host) *= 2;
    r.num_workers = 2 * devices;
  });
  return changes;
}

/// The plan as it is, on the changed cluster; none where it does not run or fit there.
std::optional<RankedPlan> same_plan(const SearchRequest& changed, const RankedPlan& plan) {
  const int devices = changed.problem.cluster.num_devices();
  if (plan.candidate.layout.num_ranks() > (changed.num_workers > 0 ? std::min(changed.num_workers, devices) : devices)) return std::nullopt;
  PlanProblem problem = changed.problem;
  problem.global_batch = plan.global_batch;
  RankedPlan out = plan;
  out.forecast = forecast_step(problem, plan.candidate);
  if (!out.forecast.fits) return std::nullopt;
  // Every objective but memory is a multiple of the step's time.
  const double times = out.forecast.step_seconds / plan.forecast.step_seconds;
  out.objective = changed.objective == Objective::kMemory ? static_cast<double>(out.forecast.peak_memory_bytes()) : plan.objective * times;
  return out;
}

}  // namespace

std::vector<WhatIf> what_if(const SearchRequest& request, const PlanAnswer& answer, double seconds, const std::atomic<bool>* stop,
                            const std::function<void()>& look) {
  std::vector<WhatIf> out;
  const std::string now = to_text(layout_of(request.problem.profile, answer.best));
  for (Change& change : changes_of(request)) {
    if (look) look();
    if (stop && *stop) break;
    change.request.search_seconds = seconds;
    change.request.num_runners_up = 0;
    WhatIf one{.change = change.name};
    try {
      const PlanAnswer other = search_plan(
          change.request,
          [&](const SearchProgress&) {
            if (look) look();
          },
          stop);
      if (stop && *stop) break;  // Half a search would say that the change makes things worse.
      one.best = other.best;
      // This search had less time: where its plan is not clearly better than the one that is there, nothing changes.
      if (const auto same = same_plan(change.request, answer.best); same && same->objective <= other.best.objective * (1 + kNoiseFloor))
        one.best = *same;
      one.gain = 1 - one.best.objective / answer.best.objective;
      const std::string layout = to_text(layout_of(request.problem.profile, one.best));
      const std::string difference =
          std::abs(one.gain) < 0.0005 ? "no difference" : concat(percent(std::abs(one.gain)), one.gain > 0 ? " less" : " more");
      one.sentence = concat(change.name, ": ", layout == now ? "the same plan" : layout, ", ",
                            objective_text(request.objective, one.best.objective), ", ", difference);
    } catch (const Error& error) {
      // Keys that were given can ask for more devices than the half of them; the plan itself is not lost by that.
      if (error.code() != ErrorCode::kInfeasible && error.code() != ErrorCode::kBadInput) throw;
      if (stop && *stop) break;
      one.feasible = false;
      one.sentence =
          concat(change.name, error.code() == ErrorCode::kInfeasible ? ": nothing fits" : concat(": not searched: ", error.what()));
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<std::string> shadow_prices(const std::vector<WhatIf>& answers) {
  std::vector<std::string> out;
  for (const WhatIf& one : answers) {
    if (!one.feasible) continue;
    if (one.change == "2 GiB more memory a device")
      out.push_back(concat("a GiB more on each device saves ", percent(std::max(0.0, one.gain / 2))));
    if (one.change.ends_with("at twice their rate"))
      out.push_back(concat(one.change.substr(0, one.change.find(" at")), " twice as fast save ", percent(std::max(0.0, one.gain))));
  }
  return out;
}

}  // namespace cohort
