// The search for the least largest load beside trying all placements of small problems.
#include "bench/program/published/load_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace cohort {
namespace {

int draw(std::mt19937& random, int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); }

LoadProblem random_problem(std::mt19937& random, int num_items) {
  LoadProblem problem;
  problem.num_accelerators = 1 + draw(random, 2);
  problem.num_cpus = draw(random, 2);
  double bytes = 0;
  for (int i = 0; i < num_items; ++i) {
    const double work = draw(random, 9);
    const bool cpu_only = problem.num_cpus > 0 && draw(random, 12) == 0;
    problem.items.push_back(
        {cpu_only ? std::numeric_limits<double>::infinity() : work, work * (1 + draw(random, 4)), double(draw(random, 9))});
    bytes += problem.items.back().bytes;
  }
  problem.memory_bytes = draw(random, 1) ? bytes : 1 + bytes * (0.4 + 0.1 * draw(random, 8));
  for (int i = 0; i < num_items; ++i) {
    LoadProblem::Net net = {double(draw(random, 6) * draw(random, 3)), {i}};
    for (int reader = i + 1; reader < num_items; ++reader)
      if (draw(random, 2) == 0 && net.pins.size() < 4) net.pins.push_back(reader);
    if (net.pins.size() > 1) problem.nets.push_back(net);
  }
  return problem;
}

/// Infinite where no placement fits.
double best_of_all(const LoadProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  for (Placement placement(problem.items.size());;) {
    if (fits(problem, placement)) best = std::min(best, largest_load(problem, placement));
    size_t i = 0;
    while (i < placement.size() && ++placement[i] == problem.num_parts()) placement[i++] = 0;
    if (i == placement.size()) return best;
  }
}

std::vector<int> in_order(const LoadProblem& problem) {
  std::vector<int> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::optional<LoadAnswer> solve(const LoadProblem& problem) { return search_loads(problem, in_order(problem), {.steps = 20'000}); }

TEST_CASE("loads: what moves make of them is what they add up to") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    LoadProblem problem = random_problem(random, 8);
    for (LoadProblem::Item& item : problem.items) item.work = std::min(item.work, 9.0);
    LoadState state(problem, Placement(8, 0));
    for (int step = 0; step < 40; ++step) {
      state.move(draw(random, 7), draw(random, problem.num_parts() - 1));
      const std::vector<double> loads = loads_of(problem, state.placement());
      for (size_t part = 0; part < loads.size(); ++part) REQUIRE(state.loads()[part] == doctest::Approx(loads[part]));
    }
  }
}

TEST_CASE("loads: never below the best of all placements, equal to it on small graphs, and the bound never above") {
  std::mt19937 random(2);
  int proved = 0, equal = 0, infeasible = 0;
  constexpr int kRounds = 150;
  for (int round = 0; round < kRounds; ++round) {
    const LoadProblem problem = random_problem(random, 3 + draw(random, 4));
    const double best = best_of_all(problem);
    const auto found = solve(problem);
    CAPTURE(round);
    REQUIRE(found.has_value() == std::isfinite(best));
    if (!found) {
      ++infeasible;
      continue;
    }
    REQUIRE(fits(problem, found->placement));
    REQUIRE(found->largest_load == doctest::Approx(largest_load(problem, found->placement)));
    REQUIRE(found->largest_load >= best * (1 - 1e-9));
    REQUIRE(found->bound.value <= best * (1 + 1e-9));
    REQUIRE_FALSE(found->bound.by.empty());
    if (found->optimal) REQUIRE(found->largest_load <= best * (1 + 1e-9));
    proved += found->optimal;
    equal += found->largest_load <= best * (1 + 1e-9);
  }
  CHECK(equal == kRounds - infeasible);
  CHECK(proved > (kRounds - infeasible) * 9 / 10);
}

TEST_CASE("loads: what is joined below a load is together in every placement below it") {
  std::mt19937 random(3);
  for (int round = 0; round < 150; ++round) {
    const LoadProblem problem = random_problem(random, 6);
    const double best = best_of_all(problem);
    if (!std::isfinite(best)) continue;
    REQUIRE(best_of_all(contract_below(problem, best).problem) == doctest::Approx(best));
    Placement found;
    REQUIRE(search_all(problem, best, 1'000'000, &found) == LoadVerdict::kFound);
    REQUIRE(largest_load(problem, found) == doctest::Approx(best));
    if (best > 0) REQUIRE(search_all(problem, best * 0.999, 1'000'000, &found) == LoadVerdict::kNone);
    REQUIRE(search_all(problem, best * 2, 1, &found) != LoadVerdict::kNone);
  }
}

TEST_CASE("loads: more memory or devices is never worse") {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    LoadProblem problem = random_problem(random, 6);
    double last = std::numeric_limits<double>::infinity();
    for (int step = 0; step < 4; ++step) {
      if (const auto found = solve(problem)) {
        REQUIRE(found->largest_load <= last * (1 + 1e-9));
        last = found->largest_load;
      } else {
        REQUIRE(std::isinf(last));
      }
      step % 2 ? problem.num_accelerators += 1 : problem.memory_bytes *= 1.5;
    }
  }
}

TEST_CASE("loads: the same answer every time") {
  std::mt19937 random(5);
  LoadProblem problem = random_problem(random, 40);
  problem.num_accelerators = 3;
  REQUIRE(solve(problem)->placement == solve(problem)->placement);
}

TEST_CASE("loads: bin packing shows what area does not") {
  LoadProblem problem = {.num_accelerators = 2, .memory_bytes = 1};
  problem.items.assign(3, {.work = 2, .cpu_work = 2});
  const Bound bound = lower_bound(problem, 4);
  CHECK(bound.by == "bin packing");
  CHECK(bound.value == doctest::Approx(4));
}

TEST_CASE("loads: an order is cut where it is best") {
  LoadProblem problem = {.num_accelerators = 2, .memory_bytes = 10};
  for (const double work : {1.0, 2.0, 3.0, 4.0}) problem.items.push_back({work, work, 1});
  problem.nets = {{1, {0, 1}}, {1, {1, 2}}, {9, {2, 3}}};
  CHECK(cut_order(problem, in_order(problem)) == Placement{0, 0, 1, 1});
  problem.memory_bytes = 3;
  CHECK(fits(problem, cut_order(problem, in_order(problem))));
}

}  // namespace
}  // namespace cohort
