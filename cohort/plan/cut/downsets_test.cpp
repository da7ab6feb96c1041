#include "cohort/plan/cut/downsets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cohort/base/random.h"

namespace cohort {
namespace {

std::vector<std::pair<int, int>> random_edges(int num_nodes, uint64_t seed) {
  std::vector<std::pair<int, int>> edges;
  for (int from = 0; from < num_nodes; ++from)
    for (int to = from + 1; to < num_nodes; ++to)
      if (random_bits(seed, from, to) % 3 == 0) edges.emplace_back(from, to);
  return edges;
}

/// Counts subsets of nodes that hold their nodes' predecessors.
size_t count_downsets(const Dag& dag) {
  size_t count = 0;
  for (unsigned set = 0; set < 1u << dag.num_nodes(); ++set) {
    bool closed = true;
    for (int node = 0; node < dag.num_nodes(); ++node)
      for (const int before : dag.before[node]) closed &= !(set >> node & 1) || (set >> before & 1);
    count += closed;
  }
  return count;
}

bool is_closed(const Downsets& sets, const Dag& dag, size_t set) {
  const std::vector<int> nodes = sets.between(0, set);
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) {
    return std::all_of(dag.before[node].begin(), dag.before[node].end(), [&](int before) { return sets.holds(set, before); });
  });
}

void check_sets(const Downsets& sets, const Dag& dag) {
  std::set<std::vector<int>> seen;
  size_t last_size = 0;
  for (size_t set = 0; set < sets.size(); ++set) {
    CHECK(is_closed(sets, dag, set));
    const std::vector<int> nodes = sets.between(0, set);
    CHECK(nodes.size() >= last_size);
    last_size = nodes.size();
    CHECK(seen.insert(nodes).second);
  }
  CHECK(sets.between(0, 0).empty());
  CHECK(static_cast<int>(last_size) == dag.num_nodes());
}

TEST_CASE("downsets: all of them, once, by size") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const int num_nodes = 1 + seed % 9;
    const Dag dag = order_dag(num_nodes, random_edges(num_nodes, seed)).dag;
    const Downsets sets = all_downsets(dag, 1000);
    CHECK(sets.complete());
    CHECK(sets.size() == count_downsets(dag));
    check_sets(sets, dag);
    check_sets(linear_downsets(dag, std::vector<double>(num_nodes, 1)), dag);
  }
}

TEST_CASE("downsets: too many are none, a long chain is many words") {
  CHECK(all_downsets(order_dag(20, {}).dag, 1000).size() == 0);
  std::vector<std::pair<int, int>> edges;
  for (int node = 0; node + 1 < 200; ++node) edges.emplace_back(node, node + 1);
  const Downsets sets = all_downsets(order_dag(200, edges).dag, 201);
  REQUIRE(sets.size() == 201);
  CHECK(sets.sums(std::vector<double>(200, 0.5))[131] == 65.5);
  CHECK(sets.is_subset(64, 130));
  CHECK_FALSE(sets.is_subset(130, 64));
}

TEST_CASE("downsets: a cycle has no order") {
  CHECK(order_dag(3, {{0, 1}, {1, 2}, {2, 1}}).order.size() == 1);
  CHECK(order_dag(1, {{0, 0}}).order.empty());
}

}  // namespace
}  // namespace cohort
