// The plans that a search has met: a list of the best plan of each kind, at most kMostKept, and the Pareto front of time (to the goal, or
// of a step) and memory.
//
// Cost: O(kMostKept + front) per plan.
#include "cohort/plan/search/cut_forecasts.h"

#include <algorithm>
#include <limits>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kMostKept = 64;

}  // namespace

std::string kind_of(const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  return concat(layout.dp, ' ', layout.pp, ' ', layout.tp, ' ', layout.zero, ' ', layout.pp > 1 ? layout.schedule : "", ' ',
                layout.precision, ' ', layout.compress, ' ', layout.shares, ' ', plan.global_batch, ' ',
                recompute_text(plan.candidate.recompute));
}

double PlanPool::best_objective() const { return best_.empty() ? std::numeric_limits<double>::infinity() : best_.front().objective; }

bool PlanPool::add(const RankedPlan& plan) {
  const auto time = [this](const RankedPlan& one) {
    return objective_ == Objective::kTimeToGoal ? one.objective : one.forecast.step_seconds;
  };
  const int64_t bytes = plan.forecast.peak_memory_bytes();
  const bool is_beaten = std::any_of(front_.begin(), front_.end(), [&](const RankedPlan& other) {
    return time(other) <= time(plan) && other.forecast.peak_memory_bytes() <= bytes;
  });
  if (!is_beaten) {
    std::erase_if(front_,
                  [&](const RankedPlan& other) { return time(plan) <= time(other) && bytes <= other.forecast.peak_memory_bytes(); });
    const auto at = std::partition_point(front_.begin(), front_.end(), [&](const RankedPlan& other) { return time(other) < time(plan); });
    front_.insert(at, plan);
  }
  // Of plans with the same objective (such as bytes) the faster one is better.
  const auto better = [](const RankedPlan& a, const RankedPlan& b) {
    return a.objective != b.objective ? a.objective < b.objective : a.forecast.step_seconds < b.forecast.step_seconds;
  };
  if (best_.size() >= kMostKept && !better(plan, best_.back())) return false;
  const std::string kind = kind_of(plan);
  const auto alike = std::find_if(best_.begin(), best_.end(), [&](const RankedPlan& other) { return kind_of(other) == kind; });
  if (alike != best_.end()) {
    if (!better(plan, *alike)) return false;
    best_.erase(alike);
  }
  const auto at = std::partition_point(best_.begin(), best_.end(), [&](const RankedPlan& other) { return !better(plan, other); });
  const bool is_best = at == best_.begin();
  best_.insert(at, plan);
  if (best_.size() > kMostKept) best_.pop_back();
  return is_best;
}

std::vector<RankedPlan> PlanPool::runners_up(int count) const {
  const auto end = std::min(best_.size(), static_cast<size_t>(std::max(0, count)) + 1);
  return {best_.begin() + (best_.empty() ? 0 : 1), best_.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Why nothing fits, and what would do.
//
//   memory    the peak of the plan with the least memory: with that much per rank, that plan fits.
//   devices   the cluster with more hosts of its last kind: least_number() of devices with which a plan was found that fits.
//
// Cost: about twelve searches for the least memory, of a fraction of a second each.
namespace {

constexpr int kMostDevices = 1 << 14;
constexpr double kSearchSeconds = 0.3;

std::string constraint(const WorkerForecast& worker) {
  const StepMemory& memory = worker.memory;
  const int64_t held = memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.buckets;
  if (held > worker.memory_limit) return "weights, gradients and optimizer alone are more than that";
  if (held + memory.overhead > worker.memory_limit)
    return "what a process has beside its tensors is, with weights, gradients and optimizer, more than that";
  if (memory.stash + memory.recompute > held)
    return "the activations of the smallest micro-batch do not fit, recomputed as far as that helps";
  return "weights, gradients, optimizer and the activations of the smallest micro-batch do not fit together";
}

std::optional<int> devices_that_do(const SearchRequest& request, const LeastMemory& search) {
  const auto does = [&](SearchRequest larger, int devices) {
    larger.problem.cluster = with_hosts_for(std::move(larger.problem.cluster), devices);
    larger.num_workers = devices;
    const auto plan = search(larger, kSearchSeconds);
    return plan && plan->forecast.fits;
  };
  return least_number(request.most_workers(), [&](int devices) { return devices <= kMostDevices && does(request, devices); });
}

}  // namespace

std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search) {
  const WorkerForecast& worker = least.forecast.tightest_worker();
  const int workers = request.most_workers();
  std::string out = concat("plan: no layout of at most ", workers, workers == 1 ? " device" : " devices", " fits into ",
                           worker.memory_limit, " bytes a rank: ", constraint(worker), ". The least that was found needs ",
                           least.forecast.peak_memory_bytes(), " bytes (", to_text(least.candidate.layout), "): give each rank that much");
  const auto devices = devices_that_do(request, search);
  return devices ? concat(out, ", or ", *devices, " devices like these") : concat(out, "; more devices like these were not found to help");
}

}  // namespace cohort
