// The time to a goal by number of workers, on a cluster of 16 devices and a model whose weights are many for what it computes.

#include "cohort/plan/time_to_goal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

/// 16 layers of 16 MiB of weights each; the first takes half of a sample's 48 ms and has few weights. Replicas exchange 250 MB over links
/// of 1 GB/s, half a second; a pipeline waits for the first layer.
SearchRequest heavy_weights(std::vector<GoalSteps> curve) {
  SearchRequest request;
  ModelProfile& profile = request.problem.profile;
  profile.model = "heavy";
  ProfilePoint one, many;
  one.micro_batch = 1, many.micro_batch = 64;
  for (int i = 0; i < 16; ++i) {
    profile.layers.push_back({.name = concat("l", i), .kind = "linear", .num_trained = i == 0 ? 1000 : 4 << 20});
    profile.edges.emplace_back(i - 1, i);
    const double seconds = i == 0 ? 8e-3 : 5e-4;
    one.layers.push_back({seconds, seconds, seconds, 1, 1, 10'000, 1000});
    many.layers.push_back({64 * seconds, 64 * seconds, 64 * seconds, 1, 1, 640'000, 64'000});
  }
  profile.points = {one, many};
  Cluster& cluster = request.problem.cluster;
  cluster.name = "sixteen";
  DeviceKind chip;
  chip.name = "chip", chip.memory_bytes = int64_t{1} << 34, chip.memory_bytes_per_second = 1e11;
  chip.rates = {{"fp32", 1e12}};
  cluster.devices = {chip};
  cluster.hosts = {{4, 4, 0}};
  for (Link& link : cluster.inside.by_exchange) link = {1e-6, 0, 1e9};
  cluster.across = cluster.inside;
  request.objective = Objective::kTimeToGoal;
  request.steps_curve = std::move(curve);
  request.search_seconds = 4;
  return request;
}

std::vector<GoalSteps> halving(int64_t last) {  // Perfect scaling.
  std::vector<GoalSteps> out;
  for (int64_t batch = 4; batch <= last; batch *= 4) {
    const double steps = 65536.0 / static_cast<double>(batch);
    out.push_back({batch, steps, steps, 1.1 * steps});
  }
  return out;
}

TEST_CASE("time to goal: where the batch may not grow past the flat point, a cluster's devices become stages and not replicas") {
  const GoalAnswer free = search_to_goal(heavy_weights(halving(1024)), {}, nullptr, nullptr);
  CHECK(free.answer.best.global_batch == 1024);
  CHECK(free.answer.best.candidate.layout.dp == 16);
  CHECK(!free.answer.best.candidate.layout.is_model_parallel());

  const GoalAnswer bounded = search_to_goal(heavy_weights(halving(16)), halving(1024), nullptr, nullptr);
  const TimeToGoal& goal = bounded.goal;
  CHECK(bounded.answer.best.global_batch <= 16);
  CHECK(bounded.answer.best.candidate.layout.is_model_parallel());
  REQUIRE(goal.plain);
  CHECK(goal.plain->global_batch == 16);
  CHECK(goal.plain->candidate.layout.dp == 16);
  CHECK(goal.plain->objective > 1.1 * goal.chosen.objective);
  const std::vector<std::string> said = goal_sentences(heavy_weights({}).problem.profile, goal);
  CHECK(std::any_of(said.begin(), said.end(), [](const std::string& one) {
    return one.starts_with("plain data parallelism over all 16 workers, at its own best batch of 16, takes") &&
           one.find("this plan saves") != std::string::npos;
  }));
}

TEST_CASE("time to goal: a batch smaller than the workers leaves plain data parallelism those past the flat point") {
  const GoalAnswer found = search_to_goal(heavy_weights(halving(4)), halving(64), nullptr, nullptr);
  REQUIRE(found.goal.plain);
  CHECK(found.goal.plain->global_batch >= 16);
  CHECK(found.answer.best.global_batch == 4);
  SearchRequest fixed = heavy_weights(halving(16));
  fixed.fixed = {{"pp", "2"}};
  CHECK(search_to_goal(fixed, {}, nullptr, nullptr).goal.plain_workers == 0);  // Keys that are given say otherwise.
}

TEST_CASE("time to goal: rows for 1, 2, 4, ... workers, none slower than the one before; price and interval are those of the plan") {
  SearchRequest request = heavy_weights(halving(16));
  request.num_workers = 6;
  const GoalAnswer found = search_to_goal(request, {}, nullptr, nullptr);
  const TimeToGoal& goal = found.goal;
  std::vector<int> workers;
  double before = std::numeric_limits<double>::infinity();
  for (const GoalRow& row : goal.rows) {
    workers.push_back(row.num_workers);
    REQUIRE(row.plan);
    CHECK(row.plan->candidate.layout.num_ranks() <= row.num_workers);
    CHECK(row.plan->objective <= before);
    before = row.plan->objective;
    CHECK(row.plan->low <= row.plan->objective);
    CHECK(row.plan->high >= 1.09 * row.plan->objective);  // The steps may be a tenth more.
    CHECK(steps_of(*row.plan) == doctest::Approx(65536.0 / static_cast<double>(row.plan->global_batch)));
    CHECK(worker_hours(*row.plan) == doctest::Approx(row.plan->candidate.layout.num_ranks() * row.plan->objective / 3600));
  }
  CHECK(workers == std::vector<int>{1, 2, 4, 6});
  CHECK(goal.chosen.objective == before);
  CHECK(found.answer.best.objective == before);
  const Json json = to_json(request.problem.profile, goal);
  CHECK(json["rows"].size() == 4);
  CHECK(json["rows"][0]["num_workers"] == 1);
  CHECK(json["seconds"] == before);
  const std::string table = goal_table(request.problem.profile, goal);
  CHECK(std::count(table.begin(), table.end(), '\n') == 6);
  CHECK(table.find("worker-hours") != std::string::npos);
}

TEST_CASE("time to goal: too few devices have no plan, and the time and Ctrl-C hold") {
  SearchRequest request = heavy_weights(halving(16));
  request.problem.cluster.devices.front().memory_bytes = 300 << 20;  // Weights and gradients are 500 MB.
  request.fixed = {{"zero", "0"}};
  const double start = process_cpu_seconds();
  const GoalAnswer found = search_to_goal(request, {}, nullptr, nullptr);
  CHECK(process_cpu_seconds() - start < 3 * request.search_seconds);
  CHECK(!found.goal.rows.front().plan);
  CHECK(found.goal.rows.back().plan);
  CHECK(goal_table(request.problem.profile, found.goal).find("no plan was found") != std::string::npos);
  CHECK(goal_sentences(request.problem.profile, found.goal).size() >= 2);
  CHECK(to_json(request.problem.profile, found.goal)["rows"][0]["feasible"] == false);
  // Stopped after the first search: its plan stays, and nothing is claimed of the others.
  std::atomic<bool> stop{false};
  request = heavy_weights(halving(16));
  request.search_seconds = 1000;
  const GoalAnswer stopped =
      search_to_goal(request, {}, [&](const SearchProgress& progress) { stop = stop || std::isfinite(progress.best); }, &stop);
  CHECK(stopped.goal.rows.size() == 1);
  CHECK(stopped.goal.plain_workers == 0);
  request.problem.cluster.devices.front().memory_bytes = 1 << 20;
  request.search_seconds = 1;
  CHECK_THROWS_AS(search_to_goal(request, {}, nullptr, nullptr), Error);
}

}  // namespace
}  // namespace cohort
