#include "cohort/tune/plan_sync.h"

#include <cmath>

#include "cohort/async/simulated/clock_only.h"
#include "cohort/plan/sync_advice.h"

namespace cohort {
namespace {

/// Seconds of forward and backward of an equal share on the device of that rank, and of the update.
double own_seconds_of(const PlanProblem& problem, const RankedPlan& best, int rank) {
  const Layout& layout = best.candidate.layout;
  const int64_t share = (best.global_batch + layout.dp - 1) / layout.dp;
  const Profile profile =
      profile_at(problem.profile, {.device = problem.cluster.devices[static_cast<size_t>(problem.cluster.device_of_rank(rank))].name,
                                   .precision = layout.precision.empty() ? "fp32" : layout.precision,
                                   .micro_batch = share});
  double seconds = best.forecast.workers.front().update_seconds;
  for (const LayerProfile& layer : profile.layers)
    seconds += layer.forward_seconds + layer.backward_input_seconds + layer.backward_weight_seconds;
  return seconds;
}

/// Latency and bandwidth of an all-reduce among all ranks, as it would be measured.
LinkEstimate link_of(const Cluster& cluster, int num_ranks) {
  const Link& link = (leaves_host(cluster, 0, 1, num_ranks) ? cluster.across : cluster.inside).of(Exchange::kAllReduce);
  return {.latency_seconds = link.latency_seconds * std::log2(num_ranks) + link.rank_seconds * num_ranks,
          .bytes_per_second = link.bytes_per_second};
}

}  // namespace

std::optional<SyncAdviceRecord> advise_sync_for(const Plan& plan) {
  const RankedPlan& best = plan.answer.best;
  const PlanProblem& problem = plan.request.problem;
  const Layout& layout = best.candidate.layout;
  const bool is_plain = layout.dp > 1 && layout.pp == 1 && layout.tp == 1 && layout.zero == 0 && layout.compress == "none" &&
                        is_step(layout.sync) && layout.precision != "fp16" && layout.accumulate <= 1;
  if (!is_plain || plan.request.objective == Objective::kMemory || problem.private_weights) return std::nullopt;
  if (best.global_batch / problem.profile.sample_granularity < layout.dp) return std::nullopt;
  std::vector<ComputeTimes> ranks;
  for (int rank = 0; rank < layout.dp; ++rank) {
    const double seconds = own_seconds_of(problem, best, rank);
    ranks.push_back({.median_seconds = seconds, .all_seconds = seconds});
  }
  if (!(ranks.front().median_seconds > 0)) return std::nullopt;
  const int64_t bytes = problem.profile.num_trained() * static_cast<int64_t>(sizeof(float));
  SyncConditions conditions{.clock = clock_of(ranks, link_of(problem.cluster, layout.dp)),
                            .global_batch = best.global_batch,
                            .granularity = problem.profile.sample_granularity,
                            .pull_bytes = bytes,
                            .push_bytes = bytes,
                            .work_item_seconds = kWorkItemSeconds};
  // With unequal devices the plan's step has shares by speed, so the clock computes the step with equal shares.
  if (conditions.clock.slow.empty()) conditions.step_seconds = best.forecast.step_seconds;
  return advise_sync(conditions, "", clock_only_pace);
}

}  // namespace cohort
