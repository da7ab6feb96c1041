#include "cohort/plan/cut/split.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// Adds a layer that takes `seconds` forward, twice that backward; returns its index.
int add(Profile& profile, double seconds, const std::vector<int>& inputs, int64_t output_bytes = 0) {
  const int index = static_cast<int>(profile.layers.size());
  profile.layers.push_back({"l" + std::to_string(index), "test", seconds, seconds, seconds, 0, 0, output_bytes});
  for (const int input : inputs) profile.edges.push_back({input, index});
  return index;
}

/// What every placement must be.
void check_stages(const Profile& profile, const BranchPlacement& placement, int num_ranks) {
  REQUIRE(placement.rank.size() == placement.first_layer.size());
  std::vector<int> stage_of;
  for (int layer = 0, stage = -1; layer < static_cast<int>(profile.layers.size()); ++layer) {
    if (stage + 1 < placement.num_stages() && placement.first_layer[stage + 1] == layer) ++stage;
    REQUIRE(stage >= 0);
    stage_of.push_back(stage);
  }
  CHECK(stage_of.back() == placement.num_stages() - 1);
  std::set<std::pair<int, int>> edges;
  for (const auto& [from, to] : profile.edges)
    if (from >= 0 && stage_of[from] != stage_of[to]) edges.insert({stage_of[from], stage_of[to]});
  CHECK(placement.edges == std::vector<std::pair<int, int>>(edges.begin(), edges.end()));
  for (const auto& [from, to] : edges) CHECK(from < to);
  std::set<int> used(placement.rank.begin(), placement.rank.end());
  CHECK(*used.begin() == 0);
  CHECK(*used.rbegin() == static_cast<int>(used.size()) - 1);
  CHECK(static_cast<int>(used.size()) <= num_ranks);
  CHECK(placement.seconds <= placement.one_rank_seconds);
}

TEST_CASE("a diamond runs its branches on two ranks") {
  Profile profile;
  const int fork = add(profile, 1, {-1}, 10);
  const int left = add(profile, 2, {add(profile, 2, {fork}, 10)}, 10), right = add(profile, 4, {fork}, 10);
  add(profile, 1, {left, right});
  profile.link_bytes_per_second = 100;  // 0.1 s a value.
  const BranchPlacement placement = place_branches(profile, 4);
  check_stages(profile, placement, 4);
  CHECK(placement.exact);
  CHECK(placement.one_rank_seconds == doctest::Approx(30));
  // The join goes with one branch, the fork with the other: both values travel while the other rank computes.
  CHECK(placement.seconds == doctest::Approx(3 * 6 + 2 * 0.1));
  REQUIRE(placement.num_stages() >= 3);
  CHECK(placement.rank[placement.num_stages() - 2] != placement.rank[1]);

  profile.link_bytes_per_second = 1;  // 10 s a value: not worth it.
  const BranchPlacement alone = place_branches(profile, 4);
  CHECK(alone.num_stages() == 1);
  CHECK(alone.edges.empty());
  CHECK(alone.seconds == alone.one_rank_seconds);
}

TEST_CASE("a chain is one stage") {
  Profile profile;
  int last = -1;
  for (int i = 0; i < 20; ++i) last = add(profile, 1, {last}, 1);
  const BranchPlacement placement = place_branches(profile, 8);
  check_stages(profile, placement, 8);
  CHECK(placement.first_layer == std::vector<int>{0});
  CHECK(placement.seconds == 60);
  CHECK(placement.exact);
}

/// Four branches that join, twice, as the inception network has them; layers of a branch one after the other, or branches in step.
Profile inception(bool in_step) {
  Profile profile;
  int last = add(profile, 1, {-1}, 100);
  for (int block = 0; block < 2; ++block) {
    std::vector<int> ends(4, last);
    if (in_step) {
      for (int depth = 0; depth < 2; ++depth)
        for (int& end : ends) end = add(profile, 2, {end}, 100);
    } else {
      for (int& end : ends)
        for (int depth = 0; depth < 2; ++depth) end = add(profile, 2, {end}, 100);
    }
    last = add(profile, 1, ends, 100);
  }
  profile.link_latency_seconds = 0.01;
  profile.link_bytes_per_second = 10'000;  // 0.02 s a value.
  return profile;
}

TEST_CASE("four branches joined, twice") {
  for (const bool in_step : {false, true}) {
    CAPTURE(in_step);
    const Profile profile = inception(in_step);
    double before = 3 * (3 + 2 * 16);
    for (const int num_ranks : {1, 2, 4, 8}) {
      CAPTURE(num_ranks);
      const BranchPlacement placement = place_branches(profile, num_ranks);
      check_stages(profile, placement, num_ranks);
      CHECK(placement.one_rank_seconds == doctest::Approx(105));
      if (num_ranks <= 2) CHECK(placement.exact);
      const int parallel = std::min(num_ranks, 4);
      // Both blocks: their work divided, and a value out and one back, forward and backward; with two ranks the values of one way cross.
      const double expected = 3 * (3 + 2 * 16.0 / parallel) + (num_ranks == 1 ? 0 : num_ranks == 2 ? 4 * 0.02 : 8 * 0.02);
      CHECK(placement.seconds == doctest::Approx(expected));
      CHECK(placement.seconds <= before);
      before = placement.seconds;
    }
  }
}

TEST_CASE("random graphs: no faster than work and ways allow, no slower than one rank or fewer ranks") {
  std::mt19937 random(5);
  for (int round = 0; round < 120; ++round) {
    CAPTURE(round);
    Profile profile;
    const int num_layers = 1 + static_cast<int>(random() % (round < 110 ? 9 : 60));
    for (int i = 0; i < num_layers; ++i) {
      std::vector<int> inputs;
      for (int n = 1 + static_cast<int>(random() % 2); n > 0; --n)
        inputs.push_back(static_cast<int>(random() % static_cast<unsigned>(i + 1)) - 1);
      add(profile, 1 + static_cast<double>(random() % 5), inputs, static_cast<int64_t>(random() % 10));
    }
    profile.link_latency_seconds = 0.25 * static_cast<double>(random() % 4);
    profile.link_bytes_per_second = 8;
    double total = 0, longest = 0;
    std::vector<double> way(profile.layers.size());
    for (const LayerProfile& layer : profile.layers) total += 3 * layer.forward_seconds;
    for (int i = 0; i < num_layers; ++i) {
      for (const auto& [from, to] : profile.edges)
        if (to == i && from >= 0) way[i] = std::max(way[i], way[from]);
      longest = std::max(longest, way[i] += 3 * profile.layers[i].forward_seconds);
    }
    double before = total;
    for (const int num_ranks : {1, 2, 3}) {
      const BranchPlacement placement = place_branches(profile, num_ranks);
      check_stages(profile, placement, num_ranks);
      CHECK(placement.seconds >= std::max(longest, total / num_ranks) * (1 - 1e-9));
      CHECK(placement.one_rank_seconds == doctest::Approx(total));
      if (placement.exact) CHECK(placement.seconds <= before * (1 + 1e-9));
      before = placement.seconds;
    }
  }
  CHECK_THROWS_AS(place_branches({}, 2), Error);
}

}  // namespace
}  // namespace cohort
