#include "cohort/train/advice/sync_conditions.h"

#include <algorithm>

#include "cohort/comm/group.h"
#include "cohort/train/advice/balance.h"

namespace cohort {
namespace {

constexpr int64_t kLeastPushes = 4;  // Of a worker; who has fewer came late or was lost early.

}  // namespace

std::optional<SyncConditions> conditions_of_ranks(Group& group, const std::vector<double>& own_seconds, const LinkEstimate& link) {
  const ComputeTimes mine = compute_times(own_seconds);
  std::vector<ComputeTimes> ranks(static_cast<size_t>(group.size()));
  for (const auto field :
       {&ComputeTimes::median_seconds, &ComputeTimes::all_seconds, &ComputeTimes::num_pauses, &ComputeTimes::pause_seconds}) {
    const std::vector<double> of_ranks = gather_numbers(group, mine.*field, "the ranks' computing");
    for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].*field = of_ranks[rank];
  }
  const bool all_computed = std::all_of(ranks.begin(), ranks.end(), [](const ComputeTimes& its) { return its.median_seconds > 0; });
  if (own_seconds.size() < kLeastStepsOfAdvice || !all_computed) return std::nullopt;
  return SyncConditions{.clock = clock_of(ranks, link), .ticket_seconds = kTicketSeconds};
}

std::optional<SyncConditions> conditions_of_workers(const AsyncRecord& record, double samples_of_ticket) {
  SyncConditions conditions;
  if (!record.clock.empty()) {
    conditions.clock = parse_virtual(record.clock);
    if (conditions.clock.mtbf_seconds > 0) return std::nullopt;
    return conditions;
  }
  conditions.ticket_seconds = kTicketSeconds;
  std::vector<ComputeTimes> workers;
  double moving = 0;
  for (const AsyncRecord::Worker& worker : record.workers) {
    moving += worker.moving_seconds;
    if (worker.pushes < kLeastPushes || !(worker.computing_seconds > 0)) continue;
    const double seconds = worker.computing_seconds / static_cast<double>(worker.samples) * samples_of_ticket;
    workers.push_back({.median_seconds = seconds, .all_seconds = worker.computing_seconds});
  }
  if (workers.size() < 2 || record.pushes < static_cast<int64_t>(kLeastStepsOfAdvice * workers.size())) return std::nullopt;
  const auto bytes = static_cast<double>(record.bytes_to_workers + record.bytes_to_server);
  const bool has_link = moving > 0 && bytes > 0;
  conditions.clock = clock_of(workers, {.latency_seconds = 0, .bytes_per_second = has_link ? bytes / moving : 0});
  return conditions;
}

}  // namespace cohort
