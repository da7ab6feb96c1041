// Plans for one host whose ranks are not equally fast.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cohort/base/text/json.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

/// Eight layers of 3 ms a sample on rank 0, and `times` of that on the others; exchanges are nearly free.
SearchRequest request_of(int num_ranks, double times, int64_t global_batch) {
  SearchRequest request;
  PlanProblem& problem = request.problem;
  ModelProfile& profile = problem.profile;
  profile.model = "chain";
  problem.global_batch = global_batch;
  Cluster& cluster = problem.cluster;
  cluster.name = "uneven";
  cluster.shared_memory = true;
  for (Link& link : cluster.inside.by_exchange) link = {1e-7, 0, 1e12};
  cluster.across = cluster.inside;
  for (const double factor : {1.0, times}) {
    const std::string name = factor == 1 ? "fast" : "slow";
    if (factor == 1 && !cluster.devices.empty()) continue;
    cluster.devices.push_back({.name = name, .memory_bytes = int64_t{1} << 40, .rates = {{"fp32", 1e12}}, .memory_bytes_per_second = 1e12});
    for (const int64_t size : {int64_t{1}, global_batch}) {
      ProfilePoint point{.device = name, .micro_batch = size, .layers = {}};
      const double seconds = 1e-3 * static_cast<double>(size) * factor;
      for (int layer = 0; layer < 8; ++layer)
        point.layers.push_back({.forward_seconds = seconds,
                                .backward_input_seconds = seconds,
                                .backward_weight_seconds = seconds,
                                .stash_bytes = 4 * size,
                                .output_bytes = 4 * size});
      profile.points.push_back(point);
    }
  }
  for (int layer = 0; layer < 8; ++layer) {
    profile.layers.push_back({.name = "l" + std::to_string(layer), .kind = "linear", .num_trained = 10});
    profile.edges.emplace_back(layer - 1, layer);
  }
  HostGroup host{1, num_ranks, 0, {}};
  for (int rank = 0; rank < num_ranks; ++rank) host.mixed.push_back(rank == 0 || times == 1 ? 0 : 1);
  cluster.hosts = {host};
  return request;
}

TEST_CASE("uneven: a plan gives a slow rank of the host less, and says what equal shares would waste") {
  SearchRequest request = request_of(2, 3, 32);
  const PlanAnswer answer = search_plan(request, nullptr, nullptr);
  CHECK(answer.best.candidate.layout.dp == 2);
  CHECK(answer.best.candidate.layout.shares == "24:8");
  const auto uneven = uneven_forecast(request.problem, answer.best);
  REQUIRE(uneven);
  // 24 ms a sample: 16 samples take 0.384 s on one rank and 1.152 on the other; with 24 and 8 both take 0.576.
  CHECK(uneven->equal_step_seconds == doctest::Approx(1.152).epsilon(0.01));
  CHECK(uneven->equal_waste == doctest::Approx(1.0 / 3).epsilon(0.01));
  CHECK(uneven->step_seconds == doctest::Approx(0.576).epsilon(0.01));
  CHECK(uneven->waste == doctest::Approx(0));
  CHECK(uneven->shares == std::vector<double>{0.75, 0.25});
  CHECK_MESSAGE(sentence_of(*uneven).find("75 %, 25 %: with equal shares a step takes 1.2 s, and 33 % of") != std::string::npos,
                sentence_of(*uneven));
  const Plan plan{.request = request, .answer = answer, .reasons = {}};
  CHECK(to_json(plan)["uneven"]["predicted_equal_waste"].get<double>() == uneven->equal_waste);
  const std::vector<std::string> reasons = reasons_of(request, answer);
  CHECK(std::count(reasons.begin(), reasons.end(), sentence_of(*uneven)) == 1);
}

TEST_CASE("uneven: equal shares that are asked for are told of; equal workers are not") {
  SearchRequest request = request_of(3, 2, 30);
  request.fixed = {{"dp", "3"}, {"pp", "1"}, {"tp", "1"}, {"shares", "equal"}};
  const auto uneven = uneven_forecast(request.problem, search_plan(request, nullptr, nullptr).best);
  REQUIRE(uneven);
  CHECK(uneven->equal_waste == uneven->waste);
  CHECK(uneven->waste == doctest::Approx(1.0 / 6).epsilon(0.01));  // One of three ranks waits half of the step.
  CHECK(sentence_of(*uneven).starts_with("workers are not equally fast: with equal shares"));
  const SearchRequest alike = request_of(2, 1, 32);
  const PlanAnswer answer = search_plan(alike, nullptr, nullptr);
  CHECK(!uneven_forecast(alike.problem, answer.best));
  CHECK(!to_json(Plan{.request = alike, .answer = answer, .reasons = {}}).contains("uneven"));
}

TEST_CASE("uneven: a pipeline gives the slow rank fewer layers") {
  SearchRequest request = request_of(2, 3, 32);
  request.fixed = {{"dp", "1"}, {"pp", "2"}, {"tp", "1"}};
  const PlanAnswer answer = search_plan(request, nullptr, nullptr);
  const RankedPlan& best = answer.best;
  REQUIRE(best.forecast.workers.size() == 2);
  CHECK(best.forecast.workers[0].device == "fast");
  CHECK(best.forecast.workers[0].layers.size() == 6);
  CHECK(best.forecast.workers[1].layers.size() == 2);
  CHECK(!uneven_forecast(request.problem, best));
  const auto says_why = [](const SearchRequest& asked, const PlanAnswer& answer) {
    const std::vector<std::string> reasons = reasons_of(asked, answer);
    return std::any_of(reasons.begin(), reasons.end(), [](const std::string& reason) {
      return reason.find("dealt out by their seconds on each: worker 0 ('fast') 6 layers, ") != std::string::npos &&
             reason.find("; worker 1 ('slow') 2 layers, ") != std::string::npos;
    });
  };
  CHECK(says_why(request, answer));
  SearchRequest alike = request_of(2, 1, 32);
  alike.fixed = request.fixed;
  CHECK(!says_why(alike, search_plan(alike, nullptr, nullptr)));
}

}  // namespace
}  // namespace cohort
