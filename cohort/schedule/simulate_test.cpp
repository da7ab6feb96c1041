#include "cohort/schedule/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "cohort/base/fail.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/scheduler.h"

namespace cohort {
namespace {

/// Costs of every stage: `forward`, ... of a rank for one micro-batch, divided by its `chunks` stages.
StageCosts even_costs(int num_stages, int chunks, double forward, double input, double weight) {
  StageCosts costs;
  costs.forward.assign(num_stages, forward / chunks);
  costs.backward_input.assign(num_stages, input / chunks);
  costs.backward_weight.assign(num_stages, weight / chunks);
  return costs;
}

Timeline run(const std::string& name, int p, int m, double forward = 1, double input = 1, double weight = 1) {
  const Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
  return simulate(schedule, even_costs(schedule.num_stages, schedule.num_stages / p, forward, input, weight));
}

StageCosts random_costs(int num_stages, std::mt19937& random) {
  std::uniform_real_distribution<double> time(0.2, 2);
  StageCosts costs;
  for (int stage = 0; stage < num_stages; ++stage) {
    costs.forward.push_back(time(random));
    costs.backward_input.push_back(time(random));
    costs.backward_weight.push_back(time(random));
  }
  const double transfer = time(random) / 4;
  costs.transfer = [transfer](int from, int to) { return transfer * (1 + 0.1 * from + 0.01 * to); };
  return costs;
}

TEST_CASE("schedules: on graphs whose stages do not all wait for each other every named one ends") {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved:2", "bfs:2", "zb-h1", "zb-v"};
    const std::string& name = names[static_cast<size_t>(round) % names.size()];
    const int p = 2 + static_cast<int>(random() % 3), m = 1 + static_cast<int>(random() % 9), stages = num_stages_of(name, p);
    PipelineShape shape{.num_ranks = p, .num_micro_batches = m};
    for (int to = 1; to < stages; ++to)  // Each reads an earlier one; the last reads what nobody else does.
      shape.edges.emplace_back(static_cast<int>(random() % static_cast<unsigned>(to)), to);
    for (int from = 0; from + 1 < stages; ++from)
      if (std::none_of(shape.edges.begin(), shape.edges.end(), [&](const auto& edge) { return edge.first == from; }))
        shape.edges.emplace_back(from, stages - 1);
    std::sort(shape.edges.begin(), shape.edges.end());
    shape.edges.erase(std::unique(shape.edges.begin(), shape.edges.end()), shape.edges.end());
    StageCosts costs = equal_costs(stages);
    for (std::vector<double>* part : {&costs.forward, &costs.backward_input, &costs.backward_weight})
      for (double& seconds : *part) seconds = 0.1 + static_cast<double>(random() % 100) / 10;
    shape.costs = &costs;
    CAPTURE(name);
    CAPTURE(p);
    CAPTURE(m);
    const Schedule schedule = make_schedule(name, shape);
    size_t num_actions = 0;
    for (const std::vector<Action>& rank : schedule.actions) num_actions += rank.size();
    CHECK(num_actions >= static_cast<size_t>(2 * stages * m));
    CHECK(std::isfinite(simulate(schedule, costs).makespan));
  }
}

TEST_CASE("bubbles of equal stages are those of theory") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 12; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const double plain = (p - 1.0) / (m + p - 1);
      for (const char* name : {"gpipe", "1f1b", "interleaved:1", "bfs:1"}) {
        REQUIRE(run(name, p, m).bubble == doctest::Approx(plain));
        REQUIRE(run(name, p, m, 1.5, 0.25, 2).bubble == doctest::Approx(plain));
      }
      REQUIRE(run("zb-h1", p, m).bubble <= plain + 1e-9);
      if (m < p) continue;
      for (const int v : {2, 3})
        for (const std::string& name : {concat("interleaved:", v), concat("bfs:", v)}) {
          REQUIRE(run(name, p, m).bubble == doctest::Approx((p - 1.0) / (m * v + p - 1)));
          REQUIRE(run(name, p, m, 1, 2, 0.5).bubble == doctest::Approx((p - 1.0) / (m * v + p - 1)));
        }
      // Idle time: a third of that of 1f1b.
      REQUIRE(run("zb-h1", p, m).makespan - 3 * m == doctest::Approx((run("1f1b", p, m).makespan - 3 * m) / 3));
      REQUIRE(run("zb-h1", p, m, 1, 1, 0.5).makespan - 2.5 * m == doctest::Approx((p - 1) * 1.5));
      if (m < 2 * p - 1) continue;
      REQUIRE(run("zb-v", p, m).makespan - 3 * m == doctest::Approx((p - 1) / 2.0));
      REQUIRE(run("zb-v", p, m).bubble == doctest::Approx((p - 1.0) / (6 * m + p - 1)));
    }
}

TEST_CASE("a small pipeline by hand, with transfers that cost time and processors") {
  const Schedule schedule = make_schedule("1f1b", {.num_ranks = 2, .num_micro_batches = 2});
  StageCosts costs = {.forward = {1, 2}, .backward_input = {1, 1}, .backward_weight = {1, 2}};
  costs.transfer = [](int from, int) { return from == 0 ? 0.5 : 0.25; };
  Timeline timeline = simulate(schedule, costs);
  // Rank 1: F from 1.5 to 3.5, B to 6.5, F to 8.5, B to 11.5; rank 0 gets its gradients at 6.75 and 11.75, and takes 2 for each.
  CHECK(timeline.makespan == doctest::Approx(13.75));
  CHECK(timeline.busy == std::vector<double>{6, 10});
  CHECK(timeline.bubble == doctest::Approx(1 - 16 / 27.5));
  CHECK(timeline.ranks[1].front().start == doctest::Approx(1.5));
  costs.send = 0.1;
  costs.receive = 0.2;
  timeline = simulate(schedule, costs);
  // F0 to 1, sent at 1.1, there at 1.6, received at 1.8. Rank 1: F to 3.8, B to 6.8, sent at 6.9, receives to 7.1, F to 9.1, B to 12.1,
  // sent at 12.2. Rank 0: receives from 12.45 to 12.65, B to 14.65.
  CHECK(timeline.makespan == doctest::Approx(14.65));
  CHECK(timeline.busy[0] == doctest::Approx(6 + 2 * 0.1 + 2 * 0.2));
  CHECK(timeline.ranks[0][1].action == Action{ActionKind::kSendForward, 0, 0, 1});
}

TEST_CASE("a zero-bubble paper's figures: 1.5 B parameters, 8 ranks, 24 micro-batches (Qi et al., ICLR 2024)") {
  const auto bubble = [](const std::string& name) {
    // Milliseconds of F, I, W and a transfer, quoted from memory and not compared with the paper's table; the bubbles below are published.
    StageCosts costs = even_costs(8, 1, 18.522, 18.086, 9.337);
    costs.transfer = [](int, int) { return 0.601; };
    return simulate(make_schedule(name, {.num_ranks = 8, .num_micro_batches = 24}), costs).bubble;
  };
  CHECK(bubble("1f1b") == doctest::Approx(0.2431).epsilon(0.0002));
  CHECK(bubble("zb-h1") == doctest::Approx(0.1585).epsilon(0.0003));
}

/// Every start is the latest of what it waits for: the rank's action before and the values that arrive.
void check_timeline(const Schedule& schedule, const StageCosts& costs, const Timeline& timeline) {
  std::map<std::pair<int, int>, double> forward_end, backward_end;
  const std::vector<std::vector<int>> rank_of = ranks_of_stages(schedule);
  for (const auto& rank : timeline.ranks)
    for (const auto& [action, start, end] : rank) {
      if (action.kind == ActionKind::kForward) forward_end[{action.stage, action.micro_batch}] = end;
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput)
        backward_end[{action.stage, action.micro_batch}] = end;
    }
  for (const auto& rank : timeline.ranks) {
    double before = 0;
    for (const auto& [action, start, end] : rank) {
      const auto& [kind, stage, k, peer] = action;
      double ready = before;
      const auto wait = [&](double made, int from) {
        ready = std::max(ready, made + (rank_of[from][k] == rank_of[stage][k] ? 0 : costs.transfer(from, stage)));
      };
      for (const auto& [from, to] : schedule.edges) {
        if (kind == ActionKind::kForward && to == stage) wait(forward_end.at({from, k}), from);
        if (kind != ActionKind::kForward && kind != ActionKind::kBackwardWeight && from == stage) wait(backward_end.at({to, k}), to);
      }
      REQUIRE(start == doctest::Approx(ready));
      before = end;
    }
    REQUIRE(before <= timeline.makespan + 1e-9);
  }
}

TEST_CASE("every start is as early as the order allows, with uneven times") {
  std::mt19937 random(3);
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "bfs:3", "zb-h1", "zb-v"})
    for (int p = 1; p <= 5; p += 2)
      for (int m = 1; m <= 7; m += 3) {
        CAPTURE(name);
        CAPTURE(p);
        CAPTURE(m);
        const Schedule schedule = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
        const StageCosts costs = random_costs(schedule.num_stages, random);
        check_timeline(schedule, costs, simulate(schedule, costs));
      }
}

TEST_CASE("with costs the zero-bubble schedules are no slower, and keep no more") {
  std::mt19937 random(4);
  double gained = 0;
  for (const char* name : {"zb-h1", "zb-v"})
    for (int p = 1; p <= 4; ++p)
      for (int m = 1; m <= 9; m += 2) {
        CAPTURE(name);
        CAPTURE(p);
        CAPTURE(m);
        const StageCosts costs = random_costs(num_stages_of(name, p), random);
        const Schedule plain = make_schedule(name, {.num_ranks = p, .num_micro_batches = m});
        const Schedule fitted = make_schedule(name, {.num_ranks = p, .num_micro_batches = m, .costs = &costs});
        const double before = simulate(plain, costs).makespan, after = simulate(fitted, costs).makespan;
        REQUIRE(after <= before * (1 + 1e-9));
        gained += (before - after) / before;
        const ScheduleFacts facts = check_schedule(fitted);
        const int chunks = plain.num_stages / p;
        REQUIRE(*std::max_element(facts.peak_stash.begin(), facts.peak_stash.end()) <= chunks * std::min(p, m));
      }
  CHECK(gained > 0);
}

TEST_CASE("costs that do not fit are refused") {
  const Schedule schedule = make_schedule("gpipe", {.num_ranks = 2, .num_micro_batches = 2});
  StageCosts costs = even_costs(2, 1, 1, 1, 1);
  CHECK(simulate(schedule, costs).makespan == 9);
  CHECK_THROWS_WITH_AS(simulate(schedule, even_costs(3, 1, 1, 1, 1)), "simulate: 3 times of forward for 2 stages; give one a stage", Error);
  costs.transfer = [](int, int) { return -1.0; };
  CHECK_THROWS_AS(simulate(schedule, costs), Error);
  CHECK_THROWS_AS(make_schedule("zb-h1", {.num_ranks = 2, .num_micro_batches = 2, .costs = &costs}), Error);
  costs.transfer = nullptr;
  costs.backward_input[1] = std::nan("");
  CHECK_THROWS_AS(simulate(schedule, costs), Error);
  const Timeline nothing = simulate(schedule, even_costs(2, 1, 0, 0, 0));
  CHECK(nothing.makespan == 0);
  CHECK(nothing.bubble == 0);
  CHECK(timeline_text(nothing) == "rank 0 ||\nrank 1 ||\n");
}

}  // namespace
}  // namespace cohort
