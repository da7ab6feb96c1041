#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "cohort/base/fail.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/scheduler.h"
#include "tests/support/naive_machine.h"

namespace cohort {
namespace {

using Edges = std::vector<std::pair<int, int>>;
using Ranks = std::vector<std::vector<int>>;

Ranks one_rank_each(int num_stages) {
  Ranks ranks;
  for (int stage = 0; stage < num_stages; ++stage) ranks.push_back({stage});
  return ranks;
}

/// The bound that branch.cpp states, by recursion instead of its loop.
int replicas_to_the_end(const Edges& edges, const Ranks& owners, int stage) {
  int longest = 0;
  for (const auto& [from, to] : edges)
    if (from == stage) {
      const bool same = owners[from] == owners[to];
      longest = std::max(longest, replicas_to_the_end(edges, owners, to) - (same ? static_cast<int>(owners[to].size()) : 0));
    }
  return longest + static_cast<int>(owners[stage].size());
}

int under_way(const Edges& edges, const Ranks& owners, int stage) {
  const int replicas = static_cast<int>(owners[stage].size());
  return (replicas_to_the_end(edges, owners, stage) + replicas - 1) / replicas;
}

TEST_CASE("a chain gives 1f1b; with split backward what zb-h1 reaches") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 8; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const PipelineShape shape = {.num_ranks = p, .num_micro_batches = m};
      REQUIRE(make_graph_schedule(chain_edges(p), one_rank_each(p), m).actions == make_schedule("1f1b", shape).actions);
      const Schedule split = make_graph_schedule(chain_edges(p), one_rank_each(p), m, true);
      const Timeline timeline = simulate(split, equal_costs(p));
      REQUIRE(timeline.makespan <= simulate(make_schedule("zb-h1", shape), equal_costs(p)).makespan);
      REQUIRE(*std::max_element(timeline.peak_stash.begin(), timeline.peak_stash.end()) <= p);
    }
}

TEST_CASE("parallel branches run at the same time") {
  // 0 splits to 1 and 2, which join in 3.
  const Schedule schedule = make_graph_schedule({{0, 1}, {0, 2}, {1, 3}, {2, 3}}, one_rank_each(4), 8);
  const ScheduleFacts facts = check_schedule(schedule);
  CHECK(facts.peak_stash == std::vector<int>{3, 2, 2, 1});
  CHECK(facts.num_messages == 8 * 8);
  // As a chain of three: 8 micro-batches of 3, and two stages to come and go through.
  CHECK(simulate(schedule, equal_costs(4)).makespan == 3 * (8 + 2));
}

TEST_CASE("a slow stage on two ranks takes half as long") {
  StageCosts costs = equal_costs(3);
  costs.forward[1] = costs.backward_input[1] = costs.backward_weight[1] = 2;
  const Schedule one = make_graph_schedule(chain_edges(3), {{0}, {1}, {2}}, 16, false, &costs);
  const Schedule two = make_graph_schedule(chain_edges(3), {{0}, {1, 2}, {3}}, 16, false, &costs);
  const double alone = simulate(one, costs).makespan, shared = simulate(two, costs).makespan;
  CHECK(alone >= 1 + 6 * 16 + 2);  // The slow rank has 6 for each micro-batch, and rank 0 comes first and last.
  CHECK(alone <= 1 + 6 * 16 + 2 + 3);
  CHECK(shared < 0.7 * alone);  // Now every rank has 3 for each; a micro-batch needs 12 to come back, all that a limit of 4 covers.
  for (const Action& action : two.actions[2]) CHECK(action.micro_batch % 2 == 1);
  const ScheduleFacts facts = check_schedule(two);
  CHECK(facts.peak_stash == std::vector<int>{4, 2, 2, 1});
}

TEST_CASE("stages of one rank in a row keep no more than one stage would") {
  const Schedule schedule = make_graph_schedule(chain_edges(4), {{0}, {0}, {1}, {1}}, 6);
  CHECK(check_schedule(schedule).peak_stash[0] <= 4);  // Two micro-batches of two stages.
  CHECK(simulate(schedule, equal_costs(4)).makespan == 6 * (6 + 1));
}

TEST_CASE("random graphs on random ranks: valid, no deadlock, stash within the bound") {
  std::mt19937 random(11);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const int stages = 1 + below(7), ranks = 1 + below(5), m = 1 + below(8);
    Edges edges;
    for (int from = 0; from < stages; ++from)
      for (int to = from + 1; to < stages; ++to)
        if (below(3) == 0) edges.emplace_back(from, to);
    Ranks owners(stages);
    for (auto& of_stage : owners) {
      of_stage.push_back(below(ranks));
      while (below(3) == 0)
        if (const int other = below(ranks); std::find(of_stage.begin(), of_stage.end(), other) == of_stage.end()) of_stage.push_back(other);
    }
    StageCosts costs = equal_costs(stages);
    for (double& time : costs.forward) time = below(4);
    for (double& time : costs.backward_input) time = below(4) / 2.0;
    if (below(2)) costs.transfer = [](int from, int to) { return 0.25 * (to - from) * (to - from); };
    const bool split = below(2) == 1;
    Schedule schedule = make_graph_schedule(edges, owners, m, split, below(2) ? &costs : nullptr);
    const ScheduleFacts facts = check_schedule(schedule);
    const std::vector<std::vector<int>> rank_of = ranks_of_stages(schedule);
    for (int stage = 0; stage < stages; ++stage)
      for (int k = 0; k < m; ++k) REQUIRE(rank_of[stage][k] == owners[stage][k % owners[stage].size()]);
    int most = 0;
    std::vector<int> sums(schedule.num_ranks(), 0);
    for (int stage = 0; stage < stages; ++stage) {
      const int limit = under_way(edges, owners, stage);
      most = std::max(most, limit);
      for (const int rank : owners[stage]) sums[rank] += limit;
    }
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      REQUIRE(facts.peak_input_stash[rank] <= sums[rank]);
      REQUIRE(facts.peak_stash[rank] <= (split ? std::max(most, sums[rank]) : sums[rank]));
    }
    REQUIRE(NaiveMachine(schedule).runs());
    add_transfers(schedule);
    check_schedule(schedule);
    REQUIRE(NaiveMachine(schedule).runs());
  }
}

TEST_CASE("invalid placements are refused") {
  CHECK_THROWS_AS(make_graph_schedule({}, {}, 1), Error);
  CHECK_THROWS_AS(make_graph_schedule({}, {{}}, 1), Error);
  CHECK_THROWS_AS(make_graph_schedule({}, {{-1}}, 1), Error);
  CHECK_THROWS_WITH_AS(make_graph_schedule({{0, 1}}, {{0}, {1, 1}}, 1), "schedule: rank 1 is listed twice for stage 1", Error);
  CHECK_THROWS_AS(make_graph_schedule({{1, 0}}, {{0}, {1}}, 1), Error);
  CHECK_THROWS_AS(make_graph_schedule({{0, 1}}, {{0}, {1}}, 0), Error);
  const StageCosts costs = equal_costs(3);
  CHECK_THROWS_AS(make_graph_schedule({{0, 1}}, {{0}, {1}}, 2, false, &costs), Error);
}

}  // namespace
}  // namespace cohort
