// Trials are few and short, so they go to plans that can differ by more than the noise of a trial:
//
//   1. Plans that differ only in recompute, accumulation, micro-batches or the cut are of one kind: a step of the second says nothing that
//      the forecast of the first does not. One of each kind is tried.
//   2. The least measured cost has noise; of all within kNoiseFloor of it the simplest wins, for it holds less and has less to go wrong.
//   3. accumulate=5 that is forecast 0.3 % better than 4 is not better: with_round_accumulate().
//
// Cost: two forecasts a plan. Source: ours; it is what reasons_of() calls a tie.

#include "cohort/plan/trial_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "cohort/plan/explain.h"

namespace cohort {
namespace {

constexpr double kSame = 1.01;

bool is_round(int pieces) { return (pieces & (pieces - 1)) == 0; }

auto complexity(const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  const std::vector<bool>& again = plan.candidate.recompute;
  const int accumulate = std::max(1, layout.accumulate);
  return std::tuple(layout.num_ranks(), std::count(again.begin(), again.end(), true) > 0, layout.compress != "none", accumulate > 1,
                    !is_round(accumulate), layout.is_model_parallel(), layout.zero);
}

auto kind(const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  return std::tuple(layout.dp, layout.pp, layout.tp, layout.zero, layout.pp > 1 ? layout.schedule : "", layout.precision, layout.compress,
                    layout.shares, layout.order, plan.global_batch);
}

}  // namespace

bool is_simpler(const RankedPlan& a, const RankedPlan& b) { return complexity(a) < complexity(b); }

RankedPlan with_round_accumulate(const PlanProblem& asked, RankedPlan plan) {
  const int now = plan.candidate.layout.accumulate;
  if (now < 2 || is_round(now)) return plan;
  PlanProblem problem = asked;
  problem.global_batch = plan.global_batch;
  int below = 1;
  while (2 * below < now) below *= 2;
  for (const int accumulate : {below, 2 * below}) {
    RankedPlan round = plan;
    round.candidate.layout.accumulate = accumulate;
    const Layout& layout = round.candidate.layout;
    if (int64_t{layout.dp} * accumulate * layout.microbatches > plan.global_batch) continue;
    round.forecast = forecast_step(problem, round.candidate);
    const double times = round.forecast.step_seconds / plan.forecast.step_seconds;
    if (!round.forecast.fits || times > kSame) continue;
    round.objective *= times, round.low *= times, round.high *= times;
    return round;
  }
  return plan;
}

std::vector<size_t> different_plans(const std::vector<const RankedPlan*>& plans, size_t most) {
  std::vector<size_t> out;
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto same = std::find_if(out.begin(), out.end(), [&](size_t chosen) { return kind(*plans[chosen]) == kind(*plans[i]); });
    if (same == out.end()) out.push_back(i);
    else if (plans[i]->objective <= kSame * plans[*same]->objective && is_simpler(*plans[i], *plans[*same])) *same = i;
  }
  out.resize(std::min(out.size(), most));
  return out;
}

size_t winner_of_trials(const std::vector<const RankedPlan*>& plans, const std::vector<double>& costs) {
  const double least = *std::min_element(costs.begin(), costs.end());
  size_t winner = static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  for (size_t i = 0; i < plans.size(); ++i)
    if (costs[i] <= (1 + kNoiseFloor) * least && costs[i] < std::numeric_limits<double>::infinity() &&
        is_simpler(*plans[i], *plans[winner]))
      winner = i;
  return winner;
}

}  // namespace cohort
