// Stages beside trying every sequence of stages and replicas of small graphs.
#include "cohort/plan/cut/downsets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cohort/base/error.h"

namespace cohort {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

int draw(std::mt19937& random, int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); }

StageProblem random_problem(std::mt19937& random) {
  StageProblem problem;
  const int n = 1 + draw(random, 5);
  for (int i = 0; i < n; ++i)
    problem.layers.push_back(
        {double(draw(random, 5)), double(draw(random, 5)), double(draw(random, 3)), double(draw(random, 3)), double(draw(random, 2))});
  for (int i = 0; i < n; ++i)
    for (int j = i + 1; j < n; ++j)
      if (draw(random, 2) == 0) problem.edges.emplace_back(i, j);
  problem.num_devices = 1 + draw(random, 3);
  problem.memory_bytes = draw(random, 1) ? kNone : 4 + draw(random, 12);
  problem.num_micro_batches = draw(random, 1) ? 0 : 1 + draw(random, 5);
  problem.may_pipeline = draw(random, 5) > 0;
  problem.may_replicate = draw(random, 3) > 0;
  return problem;
}

/// The header once more, slowly: every sequence of stages, built from the front.
class Oracle {
 public:
  explicit Oracle(const StageProblem& problem) : problem_(problem) {}
  double best() {
    walk(0, problem_.num_devices);
    return best_;
  }

 private:
  struct Stage {
    double load, weight, stash;
  };

  void walk(unsigned done, int devices) {
    const unsigned all = (1U << problem_.layers.size()) - 1;
    if (done == all) return score();
    if (!problem_.may_pipeline && !stages_.empty()) return;
    for (unsigned end = 1; end <= all; ++end) {
      if ((end & done) != done || end == done || !is_downset(end)) continue;
      for (int r = 1; r <= (problem_.may_replicate ? devices : std::min(devices, 1)); ++r) {
        stages_.push_back(stage(done, end, r));
        walk(end, devices - r);
        stages_.pop_back();
      }
    }
  }

  bool is_downset(unsigned set) const {
    return std::all_of(problem_.edges.begin(), problem_.edges.end(),
                       [&](const auto& e) { return !(set >> e.second & 1) || (set >> e.first & 1); });
  }

  Stage stage(unsigned begin, unsigned end, int replicas) const {
    Stage out = {0, 0, 0};
    const unsigned mine = end & ~begin;
    for (unsigned i = 0; i < problem_.layers.size(); ++i) {
      const StageProblem::Layer& layer = problem_.layers[i];
      bool inside = false, outside = false;
      for (const auto& [from, to] : problem_.edges)
        if (from == static_cast<int>(i)) (mine >> to & 1 ? inside : outside) = true;
      if (mine >> i & 1) {
        out.load += layer.forward_seconds + layer.backward_seconds + (outside ? layer.transfer_seconds : 0);
        out.weight += layer.weight_bytes, out.stash += layer.stash_bytes;
      } else if (inside) {
        out.load += layer.transfer_seconds;
      }
    }
    out.load /= replicas;
    return out;
  }

  void score() {
    double largest = 0, sum = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const int behind = static_cast<int>(stages_.size() - s), kept = std::min(std::max(problem_.num_micro_batches, 1), behind);
      if (stages_[s].weight + stages_[s].stash * (problem_.num_micro_batches == 0 ? 1 : kept) > problem_.memory_bytes) return;
      largest = std::max(largest, stages_[s].load), sum += stages_[s].load;
    }
    best_ = std::min(best_, problem_.num_micro_batches == 0 ? largest : sum + (problem_.num_micro_batches - 1) * largest);
  }

  const StageProblem& problem_;
  std::vector<Stage> stages_;
  double best_ = kNone;
};

TEST_CASE("stages: the best of all sequences, with and without memory, for both objectives") {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const StageProblem problem = random_problem(random);
    const double best = Oracle(problem).best();
    const auto found = search_stages(problem, 10);
    CAPTURE(round);
    REQUIRE(found.has_value() == std::isfinite(best));
    if (!found) continue;
    REQUIRE(found->objective == doctest::Approx(best));
    REQUIRE(found->optimal);
    REQUIRE(found->lower_bound == found->objective);
    int devices = 0;
    std::vector<int> layers;
    for (const StageAnswer::Stage& stage : found->stages) {
      devices += stage.num_devices;
      layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
    }
    std::sort(layers.begin(), layers.end());
    REQUIRE(devices <= problem.num_devices);
    REQUIRE(layers.size() == problem.layers.size());
    for (size_t i = 0; i < layers.size(); ++i) REQUIRE(layers[i] == static_cast<int>(i));
  }
}

TEST_CASE("stages: a graph of too many downsets is cut along one order, with a bound below") {
  StageProblem problem;
  for (int i = 0; i < 40; ++i) problem.layers.push_back({1, 1, 0, 0, 0});
  problem.num_devices = 4;
  problem.memory_bytes = kNone;
  problem.may_replicate = false;
  const auto found = search_stages(problem, 10);
  REQUIRE(found);
  CHECK(found->objective == doctest::Approx(20));
  CHECK(found->optimal);  // Area says so.
  CHECK(std::string(found->bound_by) == "area");
}

TEST_CASE("stages: more devices or memory is never worse") {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    StageProblem problem = random_problem(random);
    double last = kNone;
    for (int step = 0; step < 4; ++step) {
      const auto found = search_stages(problem, 10);
      if (std::isfinite(last)) REQUIRE(found);
      if (found) REQUIRE(found->objective <= last * (1 + 1e-9));
      if (found) last = found->objective;
      step % 2 ? problem.num_devices += 1 : problem.memory_bytes *= 1.5;
    }
  }
}

TEST_CASE("stages: a cycle is refused") {
  StageProblem problem;
  problem.layers.resize(2);
  problem.edges = {{0, 1}, {1, 0}};
  CHECK_THROWS_AS(search_stages(problem, 1), Error);
}

}  // namespace
}  // namespace cohort
