// Plans that were met. The list keeps the best of each kind, at most kMostKept of them; the front keeps those that no other has both less
// time and less memory than, time being seconds to the goal where that is asked for, else of a step.
//
// Cost: kMostKept + front a plan.

#include "cohort/plan/search/plan_pool.h"

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
  // Of plans with the same objective (bytes, say) the faster one is better.
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

}  // namespace cohort
