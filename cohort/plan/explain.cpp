// Explains a plan: the reasons, the effect of changes of the cluster, the utilisation and the table.
#include "cohort/plan/explain.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/devices.h"
#include "cohort/plan/cost/step_forecast.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

const WorkerForecast& slowest_of(const StepForecast& forecast) {
  return *std::max_element(forecast.workers.begin(), forecast.workers.end(), [](const WorkerForecast& a, const WorkerForecast& b) {
    return a.exposed_seconds + a.update_seconds + a.forward_seconds + a.backward_seconds <
           b.exposed_seconds + b.update_seconds + b.forward_seconds + b.backward_seconds;
  });
}

std::string time_sentence(const StepForecast& forecast) {
  const WorkerForecast& worker = slowest_of(forecast);
  const double step = forecast.step_seconds;
  std::vector<std::pair<double, std::string>> parts = {
      {(worker.forward_seconds + worker.backward_seconds - worker.tensor_exchange_seconds) / step, "computing"},
      {worker.tensor_exchange_seconds / step, "exchanges of divided layers"},
      {worker.exposed_seconds / step, "exchange of gradients and weights that nothing hides"},
      {worker.update_seconds / step, "the update"},
      {worker.idle_seconds / step, "waiting for others"}};
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& [share, what] : parts)
    if (share >= 0.005) texts.push_back(concat(percent(share), " ", what));
  return concat("the busiest worker spends its step on ", join(texts, ", "));
}

std::string memory_sentence(const StepForecast& forecast) {
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
  // With the same batch both need the same number of steps.
  const bool overlaps = to_goal && other.global_batch == best.global_batch ? other.forecast.low_seconds <= best.forecast.high_seconds
                                                                           : other.low <= best.high;
  if (overlaps) return concat("tied with ", name, ": ", percent(slower), " behind, where the intervals of the forecasts overlap", memory);
  return concat(name, " lost: ", percent(slower), " behind", memory);
}

std::string objective_text(Objective objective, double value) {
  if (objective == Objective::kMemory) return human_bytes(static_cast<int64_t>(value));
  return concat(human_seconds(value), objective == Objective::kThroughput ? " a sample" : "");
}

/// The reason for stages of different size; empty where devices have the same speed.
std::string why_stages_differ(const SearchRequest& request, const RankedPlan& plan) {
  constexpr size_t kMostWorkers = 8;  // The table shows all.
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
  std::vector<std::string> reasons = {certificate(request, answer), time_sentence(answer.best.forecast),
                                      memory_sentence(answer.best.forecast)};
  if (const auto uneven = uneven_forecast(request.problem, answer.best)) reasons.push_back(sentence_of(*uneven));
  if (std::string stages = why_stages_differ(request, answer.best); !stages.empty()) reasons.push_back(std::move(stages));
  const int devices = std::min(request.most_workers(), request.problem.cluster.num_devices());
  if (layout.num_ranks() < devices)
    reasons.push_back(concat(layout.num_ranks(), " of ", devices, " devices are used: no plan that was found with more is better"));
  if (layout.dp > 1 && layout.zero == 0 && answer.best.forecast.workers.front().memory.weights > 0 && !layout.is_model_parallel())
    reasons.emplace_back("the model fits a device, so its replicas need nothing but the exchange of gradients");
  for (const RankedPlan& other : answer.runners_up) reasons.push_back(why_not(request, answer, other));
  return reasons;
}

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
    if (limited) {  // An unlimited rate cannot be halved.
      add(where + " at half their rate", [&](SearchRequest& r) { scale_links(links_of(r), 0.5); });
      add(where + " at twice their rate", [&](SearchRequest& r) { scale_links(links_of(r), 2); });
    }
  }
  add("2 GiB more memory a device", [](SearchRequest& r) { scale_memory(r.problem, 1, 2 * kGiB); });
  add("twice the memory", [](SearchRequest& r) { scale_memory(r.problem, 2, 0); });
  const int devices = std::min(request.most_workers(), cluster.num_devices());
  // A measured profile has a separate machine for fewer workers.
  if (devices / 2 >= request.least_workers) add("half the devices", [&](SearchRequest& r) { r.num_workers = devices / 2; });
  add("twice the devices", [&](SearchRequest& r) {
    if (2 * devices > cluster.num_devices())
      for (HostGroup& group : r.problem.cluster.hosts) (group.num_hosts > 1 || many_hosts ? group.num_hosts : group.devices_per_host) *= 2;
    r.num_workers = 2 * devices;
  });
  return changes;
}

/// The unchanged plan on the changed cluster; nothing where it does not run or fit.
std::optional<RankedPlan> same_plan(const SearchRequest& changed, const RankedPlan& plan) {
  if (plan.candidate.layout.num_ranks() > std::min(changed.most_workers(), changed.problem.cluster.num_devices())) return std::nullopt;
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
      if (stop && *stop) break;  // An interrupted search would understate the change.
      one.best = other.best;
      // This search had less time, so the existing plan is kept unless the new one is clearly better.
      if (const auto same = same_plan(change.request, answer.best); same && same->objective <= other.best.objective * (1 + kNoiseFloor))
        one.best = *same;
      one.gain = 1 - one.best.objective / answer.best.objective;
      const std::string layout = to_text(layout_of(request.problem.profile, one.best));
      const std::string difference =
          std::abs(one.gain) < 0.0005 ? "no difference" : concat(percent(std::abs(one.gain)), one.gain > 0 ? " less" : " more");
      one.sentence = concat(change.name, ": ", layout == now ? "the same plan" : layout, ", ",
                            objective_text(request.objective, one.best.objective), ", ", difference);
    } catch (const Error& error) {
      // Given keys may need more devices than half of them.
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

Utilisation utilisation_of(const SearchRequest& request, const RankedPlan& plan) {
  Utilisation out;
  if (plan.candidate.layout.pp == 1) return out;
  PlanProblem problem = request.problem;
  problem.global_batch = plan.global_batch;
  // The same cut and workers with a single micro-batch, so that one worker computes at a time.
  Candidate naive = plan.candidate;
  naive.layout.schedule = "gpipe";
  naive.layout.microbatches = 1;
  naive.layout.accumulate = 1;
  const StepForecast step = forecast_step(problem, naive);
  out.naive_step_seconds = step.step_seconds;
  for (const WorkerForecast& worker : step.workers)
    out.naive.push_back((worker.forward_seconds + worker.backward_seconds) / step.step_seconds);
  for (const WorkerForecast& worker : plan.forecast.workers)
    out.planned.push_back((worker.forward_seconds + worker.backward_seconds) / plan.forecast.step_seconds);
  return out;
}

namespace {

const std::vector<size_t> kPlanWidths = {6, 6, 12, 10, 10, 10, 9, 10, 10};

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

/// Counts the ranks by kind of device, where there are several; a row of the table names one only.
std::string kinds_text(const Cluster& cluster, int num_ranks) {
  std::vector<int> ranks_of_kind(cluster.devices.size(), 0);
  for (int rank = 0; rank < num_ranks; ++rank) ++ranks_of_kind[static_cast<size_t>(cluster.device_of_rank(rank))];
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < ranks_of_kind.size(); ++kind)
    if (ranks_of_kind[kind] > 0) parts.push_back(concat(ranks_of_kind[kind], " '", cluster.devices[kind].name, "'"));
  return parts.size() < 2 ? "" : concat("devices      ", join(parts, ", "), "; a row of the table names the slowest of its ranks\n");
}

}  // namespace

std::string table_row(const std::vector<size_t>& widths, const std::vector<std::string>& cells) {
  std::string out;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (cells[i].size() < widths[i]) out.append(widths[i] - cells[i].size(), ' ');
    out += cells[i] + "  ";
  }
  return out + cells.back() + "\n";
}

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
  out += table_row(kPlanWidths, {"worker", "ranks", "device", "compute", "exposed", "update", "idle", "memory", "limit", "layers"});
  for (size_t worker = 0; worker < forecast.workers.size(); ++worker) {
    const WorkerForecast& its = forecast.workers[worker];
    out += table_row(kPlanWidths,
                     {concat(worker), concat(its.num_ranks), its.device.substr(0, 12),
                      human_seconds(its.forward_seconds + its.backward_seconds), human_seconds(its.exposed_seconds),
                      human_seconds(its.update_seconds), concat(std::round(1000 * its.idle_seconds / forecast.step_seconds) / 10, " %"),
                      human_bytes(its.memory.total()), human_bytes(its.memory_limit), layers_text(request.problem.profile, its.layers)});
  }
  return out;
}

// Devices of different speed.

namespace {

/// Forward and backward of one rank's share of a step, summed over the layers as in the forecast.
double compute_seconds(const PlanProblem& problem, const Layout& layout, int rank, double share) {
  const int micro_steps = std::max(1, layout.accumulate);
  const DeviceKind& device = problem.cluster.devices[static_cast<size_t>(problem.cluster.device_of_rank(rank))];
  const int64_t samples = largest_micro_batch(share * static_cast<double>(problem.global_batch) / micro_steps);
  const Profile profile = profile_at(problem.profile, {device.name, precision_of(layout), 1, samples});
  return micro_steps * profile.seconds();
}

double waste_of(const PlanProblem& problem, const Layout& layout, const std::vector<double>& shares, double step_seconds) {
  std::vector<double> compute;
  const MeshPlacement places(layout, problem.cluster);
  for (int data = 0; data < layout.dp; ++data)
    compute.push_back(compute_seconds(problem, layout, places.rank(data, 0, 0), shares[static_cast<size_t>(data)]));
  return waiting_share(compute, step_seconds);
}

}  // namespace

double waiting_share(const std::vector<double>& compute_seconds, double step_seconds) {
  const auto workers = static_cast<double>(compute_seconds.size());
  const double most = *std::max_element(compute_seconds.begin(), compute_seconds.end());
  const double total = std::accumulate(compute_seconds.begin(), compute_seconds.end(), 0.0);
  return (most * workers - total) / (workers * std::max(step_seconds, most));
}

std::optional<UnevenForecast> uneven_forecast(const PlanProblem& asked, const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  if (layout.is_model_parallel() || layout.dp == 1 || layout.shares == "auto") return std::nullopt;
  if (!first_devices(asked.cluster, layout.num_ranks()).is_mixed()) return std::nullopt;
  PlanProblem problem = asked;
  problem.global_batch = plan.global_batch;
  Candidate equal = plan.candidate;
  equal.layout.shares = "equal";
  UnevenForecast out;
  out.shares = parse_shares(layout.shares.empty() ? "equal" : layout.shares).of(layout.dp);
  const double sum = std::accumulate(out.shares.begin(), out.shares.end(), 0.0);
  for (double& share : out.shares) share /= sum;
  out.step_seconds = plan.forecast.step_seconds;
  out.waste = waste_of(problem, layout, out.shares, out.step_seconds);
  out.equal_step_seconds = forecast_step(problem, equal).step_seconds;
  out.equal_waste = waste_of(problem, layout, std::vector<double>(out.shares.size(), 1.0 / layout.dp), out.equal_step_seconds);
  return out;
}

std::string sentence_of(const UnevenForecast& uneven) {
  std::vector<std::string> parts;
  for (const double share : uneven.shares) parts.push_back(percent(share));
  const bool are_equal =
      std::all_of(uneven.shares.begin(), uneven.shares.end(), [&](double share) { return std::abs(share - uneven.shares.front()) < 1e-9; });
  const std::string equal = concat("with equal shares a step takes ", human_seconds(uneven.equal_step_seconds), ", and ",
                                   percent(uneven.equal_waste), " of the workers' time is waiting for the slowest");
  if (are_equal) return "workers are not equally fast: " + equal;
  return concat("workers are not equally fast, so their shares of the batch are ", join(parts, ", "), ": ", equal, "; with these ",
                human_seconds(uneven.step_seconds), " and ", percent(uneven.waste));
}

std::vector<std::string> larger_machine_sentences(const MachineAnswer& found) {
  std::vector<std::string> out;
  for (const MachineAnswer::Tried& tried : found.tried) {
    const int workers = tried.request.problem.cluster.num_devices();
    if (!tried.plan || workers <= found.request.problem.cluster.num_devices()) continue;
    if (const auto uneven = uneven_forecast(tried.request.problem, *tried.plan))
      out.push_back(concat(workers, " workers would take ", human_seconds(uneven->step_seconds), " a step: ", sentence_of(*uneven)));
  }
  return out;
}

Json to_json(const UnevenForecast& uneven) {
  return {{"shares", uneven.shares},
          {"predicted_step_seconds", uneven.step_seconds},
          {"predicted_waste", uneven.waste},
          {"predicted_equal_step_seconds", uneven.equal_step_seconds},
          {"predicted_equal_waste", uneven.equal_waste}};
}

}  // namespace cohort
