// A schedule for any graph of stages on any ranks: parallel branches, skip connections, several stages on one rank, stages shared by
// several ranks. Greedy list scheduling by simulating the pipeline: a free rank takes the backward of the oldest ready micro-batch, else
// the forward of the oldest, else (split backward) a weight part. Whether forwards precede backwards and how far a weight part may delay
// known work is tried, and the fastest schedule is taken (generators.h).
//
// The stash is bounded by a limit on the micro-batches of a stage in flight, forward done and backward not:
//
//   w(s) = replicas of s + max of w over the stages that s hands values to,    on each replica ceil(w(s) / replicas of s)
//
// where a stage on the same ranks as its consumer adds nothing: enough to keep every replica busy on the longest path from s to the loss
// and back. On a chain of single ranks it is p - i and the outcome is 1F1B; with replicas it is the rule of PipeDream (Narayanan et al.,
// SOSP 2019, section 3.2). With split backward a rank keeps at most as much as the sum of its stages' limits, or the first stage's
// limit where that is more: as ZB-H1 (Qi et al., ICLR 2024).
//
// It always ends. Take the oldest unfinished micro-batch k and a stage of it with all inputs: earlier ones are done and, in the order of a
// stage, no later one can be in flight there, so no limit stops it; weight parts are always ready. Since the order was simulated it cannot
// deadlock.
//
//   bubble    as 1F1B on a chain of equal stages; elsewhere what the graph and the placement allow to a greedy order, see simulate()
//   messages  2 m for each edge whose ends are on different ranks
#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/schedule/generators.h"

namespace cohort {
namespace {

int count_ranks(const std::vector<std::vector<int>>& ranks_of_stage) {
  int highest = -1;
  for (size_t stage = 0; stage < ranks_of_stage.size(); ++stage) {
    std::vector<int> owners = ranks_of_stage[stage];
    std::sort(owners.begin(), owners.end());
    if (owners.empty() || owners.front() < 0 || owners.back() >= kMaxScheduleSize)
      fail(ErrorCode::kBadInput, "schedule: stage ", stage, " needs at least one rank, and ranks are 0 to ", kMaxScheduleSize - 1);
    if (const auto twice = std::adjacent_find(owners.begin(), owners.end()); twice != owners.end())
      fail(ErrorCode::kBadInput, "schedule: rank ", *twice, " is listed twice for stage ", stage);
    highest = std::max(highest, owners.back());
  }
  return highest + 1;
}

std::vector<int> under_way_limits(const Schedule& schedule, const std::vector<std::vector<int>>& ranks_of_stage) {
  std::vector<int> ways(schedule.num_stages, 0);  // Longest path behind the stage, in replicas on other ranks.
  std::vector<int> limits(schedule.num_stages);
  const auto replicas = [&](int stage) { return static_cast<int>(ranks_of_stage[stage].size()); };
  // Sorted by `from`, and values flow to higher numbers: backwards, every stage's consumers are known before it.
  for (auto edge = schedule.edges.rbegin(); edge != schedule.edges.rend(); ++edge)
    ways[edge->first] = std::max(
        ways[edge->first], ways[edge->second] + (ranks_of_stage[edge->first] == ranks_of_stage[edge->second] ? 0 : replicas(edge->second)));
  for (int stage = 0; stage < schedule.num_stages; ++stage)
    limits[stage] = (ways[stage] + replicas(stage) + replicas(stage) - 1) / replicas(stage);
  return limits;
}

}  // namespace

Schedule make_graph_schedule(const std::vector<std::pair<int, int>>& edges, const std::vector<std::vector<int>>& ranks_of_stage,
                             int num_micro_batches, bool split_backward, const StageCosts* costs) {
  const int num_stages = static_cast<int>(ranks_of_stage.size()), num_ranks = count_ranks(ranks_of_stage);
  Schedule schedule = empty_schedule({.num_ranks = num_ranks, .num_micro_batches = num_micro_batches, .edges = edges}, num_stages);
  schedule.name = split_backward ? "graph-zb" : "graph";
  schedule.edges = edges;
  ListRules rules = {.ranks_of_stage = ranks_of_stage, .split_backward = split_backward};
  rules.stage_limit = under_way_limits(schedule, ranks_of_stage);
  rules.reserve.assign(num_stages, 0);
  rules.rank_limit.assign(num_ranks, 0);
  for (int stage = 0; stage < num_stages; ++stage)
    for (const int rank : ranks_of_stage[stage]) rules.rank_limit[rank] += rules.stage_limit[stage];
  const int first = *std::max_element(rules.stage_limit.begin(), rules.stage_limit.end());
  for (int& limit : rules.rank_limit) limit = std::max(limit, first);
  return fastest_schedule(schedule, {rules}, costs ? *costs : equal_costs(num_stages));
}

}  // namespace cohort
