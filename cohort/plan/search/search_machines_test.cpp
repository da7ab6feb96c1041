#include "cohort/plan/search/joint_search.h"

#include <doctest/doctest.h>

namespace cohort {
namespace {

Cluster machine_of(int devices) {
  Cluster cluster{.name = "here"};
  cluster.devices = {{.name = "d", .memory_bytes = 1 << 24, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1e9}};
  cluster.hosts = {{1, devices, 0}};
  for (Link& link : cluster.inside.by_exchange) link = {0, 0, 1e6};
  cluster.across = cluster.inside;
  return cluster;
}

SearchRequest request_of() {
  SearchRequest request{.problem = {.global_batch = 4}};
  ModelProfile& profile = request.problem.profile;
  for (int layer = 0; layer < 2; ++layer) {
    profile.layers.push_back({.name = "l" + std::to_string(layer), .kind = "linear", .num_trained = 10});
    profile.edges.emplace_back(layer - 1, layer);
  }
  profile.points = {{.micro_batch = 1, .layers = {{1, 1, 1, 1, 1, 8, 4}, {1, 1, 1, 1, 1, 8, 4}}}};
  profile.measured_on = {machine_of(1), machine_of(2)};
  request.fixed["precision"] = "fp32";
  return request;
}

TEST_CASE("search of machines: one that has no plan says whether the keys that were given are the reason") {
  SearchRequest request = request_of();
  request.fixed["dp"] = "2";
  const MachineAnswer held = search_machines(request, 2, nullptr, nullptr);
  REQUIRE(held.tried.size() == 2);
  CHECK_FALSE(held.tried[0].plan);
  CHECK(held.tried[0].why == "too few for dp=2");
  CHECK(held.tried[1].plan);

  request = request_of();  // A process has more there before than it may have.
  request.problem.profile.measured_on[0].devices[0].reserved_bytes = 1 << 25;
  CHECK(search_machines(request, 2, nullptr, nullptr).tried[0].why == "nothing fits");
  request.fixed["zero"] = "0";
  CHECK(search_machines(request, 2, nullptr, nullptr).tried[0].why == "nothing fits with zero=0");
}

}  // namespace
}  // namespace cohort
