#include <doctest/doctest.h>

#include "cohort/plan/search/joint_search.h"

namespace cohort {
namespace {

SearchRequest request_of(const std::vector<double>& seconds, const std::vector<std::pair<int, int>>& edges, int num_devices,
                         int64_t memory_bytes, int64_t global_batch, int64_t num_trained) {
  SearchRequest request;
  PlanProblem& problem = request.problem;
  problem.global_batch = global_batch;
  DeviceKind device{.name = "chip", .memory_bytes = memory_bytes, .rates = {{"fp32", 1e12}}, .memory_bytes_per_second = 1e12};
  problem.cluster = {.name = "made up", .devices = {device}, .hosts = {{1, num_devices, 0}}};
  for (Link& link : problem.cluster.inside.by_exchange) link = {1e-7, 0, 1e11};
  problem.profile.edges = edges;
  ProfilePoint point;
  for (size_t i = 0; i < seconds.size(); ++i) {
    problem.profile.layers.push_back({.name = "l" + std::to_string(i), .kind = "linear", .num_trained = num_trained});
    point.layers.push_back({seconds[i], seconds[i], seconds[i], 1, 1, 100, 100});
  }
  problem.profile.points = {point};
  request.search_seconds = 600;
  return request;
}

TEST_CASE("branch plans: a batch of one sample goes through parallel branches side by side") {
  const SearchRequest request = request_of({1e-4, 5e-3, 5e-3, 1e-4}, {{-1, 0}, {0, 1}, {0, 2}, {1, 3}, {2, 3}}, 2, int64_t{1} << 40, 1, 10);
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const Candidate& best = answer.best.candidate;
  CHECK(best.layout.pp == 2);
  CHECK(best.stages.worker_of_stage[static_cast<size_t>(best.stages.stage_of[1])] !=
        best.stages.worker_of_stage[static_cast<size_t>(best.stages.stage_of[2])]);
  CHECK(answer.best.objective < 0.55 * 3 * (2 * 1e-4 + 2 * 5e-3));
  CHECK(answer.lower_bound <= answer.best.objective);
  SearchRequest held = request;
  held.fixed = {{"dp", "1"}, {"pp", "1"}};
  CHECK(search_plan(held, {}, nullptr).best.candidate.layout.pp == 1);
}

TEST_CASE("branch plans: a slow stage gets more devices where the model does not fit one") {
  const SearchRequest request = request_of({3e-3, 1e-3}, {{-1, 0}, {0, 1}}, 4, 20'000'000, 32, 1'000'000);
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const Layout& layout = answer.best.candidate.layout;
  REQUIRE(layout.stages.size() == 2);
  CHECK(layout.stages[0].dp == 3);
  CHECK(layout.stages[1].dp == 1);
  CHECK(layout.num_ranks() == 4);
  CHECK(answer.best.forecast.fits);
  // Two and two would take half as long again.
  CHECK(answer.best.objective < 1.25 * 32 * 3 * 1e-3);
  CHECK(answer.lower_bound <= answer.best.objective);
}

}  // namespace
}  // namespace cohort
