#include "cohort/plan/cut/split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

LayerProfile layer(const std::string& name, double forward, double backward, int64_t weight_bytes = 0, int64_t stash_bytes = 0,
                   int64_t output_bytes = 0) {
  return {name, "test", forward, backward / 2, backward / 2, weight_bytes, stash_bytes, output_bytes};
}

Profile chain(const std::vector<double>& seconds) {
  Profile profile;
  for (const double s : seconds) {
    const int index = static_cast<int>(profile.layers.size());
    profile.layers.push_back(layer("l" + std::to_string(index), s / 2, s / 2));
    profile.edges.push_back({index - 1, index});
  }
  return profile;
}

/// Small whole numbers, so that every sum is exact in any order.
Profile random_profile(std::mt19937& random, int num_layers, int most_skips) {
  const auto number = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  Profile profile;
  for (int i = 0; i < num_layers; ++i) {
    profile.layers.push_back(
        {"l" + std::to_string(i), "test", 1.0 + number(6), double(number(4)), double(number(4)), number(50), number(30), number(20)});
    profile.edges.push_back({i - 1, i});
  }
  for (int i = number(most_skips); i > 0; --i) {
    const int from = number(num_layers) - 1, to = number(num_layers - 1);
    if (from < to) profile.edges.push_back({from, to});
  }
  profile.link_latency_seconds = number(2);
  profile.link_bytes_per_second = number(1) ? 4 : 0;
  return profile;
}

/// What the header says, written down once more and slowly.
struct Oracle {
  const Profile& profile;
  const SplitOptions& options;
  int num_ranks = options.num_ranks ? options.num_ranks : options.num_stages;

  using Score = std::tuple<double, double>;
  struct Best {
    std::optional<Score> score;
    int64_t least_memory = std::numeric_limits<int64_t>::max();
  };

  std::tuple<Score, int64_t> score(const std::vector<int>& cuts) const {
    const auto stage_of = [&](int l) { return static_cast<int>(std::upper_bound(cuts.begin(), cuts.end(), l) - cuts.begin()) - 1; };
    std::vector<double> seconds(num_ranks), memory(num_ranks);
    double transfers = 0;
    for (size_t l = 0; l < profile.layers.size(); ++l) {
      const LayerProfile& cost = profile.layers[l];
      const int stage = stage_of(static_cast<int>(l)), rank = stage % num_ranks;
      const int most = options.num_stages - stage;
      seconds[rank] += cost.forward_seconds + cost.backward_input_seconds + cost.backward_weight_seconds;
      memory[rank] += double(cost.weight_bytes) * (2 + options.optimizer_bytes_factor);
      memory[rank] += double(cost.stash_bytes) * std::min(most, options.num_micro_batches);
    }
    std::set<std::pair<int, int>> messages;  // (value, stage that reads it)
    for (const auto& [from, to] : profile.edges)
      if (from >= 0 && stage_of(from) % num_ranks != stage_of(to) % num_ranks) messages.insert({from, stage_of(to)});
    for (const auto& [value, stage] : messages) {
      const int64_t bytes = profile.layers[value].output_bytes;
      const double there_and_back = 2 * profile.transfer_seconds(bytes);
      const int most = options.num_stages - stage;
      seconds[stage_of(value) % num_ranks] += there_and_back;
      seconds[stage % num_ranks] += there_and_back;
      memory[stage % num_ranks] += double(bytes) * std::min(most, options.num_micro_batches);
      transfers += 2 * there_and_back;
    }
    return {{*std::max_element(seconds.begin(), seconds.end()), transfers},
            static_cast<int64_t>(*std::max_element(memory.begin(), memory.end()))};
  }

  void walk(std::vector<int>& cuts, Best& best) const {
    if (static_cast<int>(cuts.size()) == options.num_stages) {
      const auto [tried, memory] = score(cuts);
      best.least_memory = std::min(best.least_memory, memory);
      if (options.memory_bytes > 0 && memory > options.memory_bytes) return;
      if (!best.score || tried < *best.score) best.score = tried;
      return;
    }
    for (int next = cuts.back() + 1; next < static_cast<int>(profile.layers.size()); ++next) {
      cuts.push_back(next);
      walk(cuts, best);
      cuts.pop_back();
    }
  }
  Best best() const {
    Best found;
    std::vector<int> cuts{0};
    walk(cuts, found);
    return found;
  }
};

TEST_CASE("a chain is cut where its slowest stage is fastest") {
  const Profile profile = chain({1, 1, 1, 5, 1, 1, 2});
  const Split split = best_split(profile, {.num_stages = 3});
  CHECK(split.first_layer == std::vector<int>{0, 3, 4});
  CHECK(split.bottleneck_seconds == 5);
  CHECK(split.exact);
  CHECK(even_split(profile, {.num_stages = 3}).first_layer == std::vector<int>{0, 2, 4});
  CHECK(even_split(profile, {.num_stages = 3}).bottleneck_seconds == 6);
  CHECK(best_split(profile, {.num_stages = 1}).bottleneck_seconds == 12);
  CHECK(best_split(profile, {.num_stages = 7}).first_layer == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("a skip edge is charged once for each stage that reads it") {
  Profile profile = chain({1, 1, 1, 1, 1, 1});
  for (LayerProfile& its : profile.layers) its.output_bytes = 10, its.weight_bytes = 100, its.stash_bytes = 7;
  profile.link_latency_seconds = 0.5, profile.link_bytes_per_second = 20;  // A value: 1 s one way.
  profile.edges.insert(profile.edges.end(), {{0, 3}, {0, 4}, {0, 5}, {0, 1}});
  const Split split = given_split(profile, {.num_stages = 3, .num_micro_batches = 2}, {2, 4});
  REQUIRE(split.stages.size() == 3);
  CHECK(split.stages[0].transfer_seconds == 6);  // 0 to stage 1, 0 to stage 2, 1 to stage 1: there and back.
  CHECK(split.stages[1].transfer_seconds == 6);  // 0 and 1 come, 3 goes.
  CHECK(split.stages[2].transfer_seconds == 4);
  CHECK(split.stages[1].seconds == 2);
  CHECK(split.bottleneck_seconds == 8);
  CHECK(split.stages[0].memory_bytes == 2 * 100 * 3 + 2 * 14);  // Two micro-batches are all there are.
  CHECK(split.stages[1].memory_bytes == 2 * 100 * 3 + 2 * (14 + 20));
  CHECK(split.stages[2].memory_bytes == 2 * 100 * 3 + 1 * (14 + 20));
}

TEST_CASE("no cut of any small graph is better") {
  std::mt19937 random(7);
  int num_infeasible = 0;
  for (int round = 0; round < 1500; ++round) {
    const int num_layers = 2 + static_cast<int>(random() % 8);
    const Profile profile = random_profile(random, num_layers, 12);
    SplitOptions options;
    options.num_stages = 1 + static_cast<int>(random() % static_cast<unsigned>(num_layers));
    options.num_micro_batches = 1 + static_cast<int>(random() % 5);
    options.optimizer_bytes_factor = static_cast<double>(random() % 3);
    if (random() % 3 == 0) options.num_ranks = 1 + static_cast<int>(random() % static_cast<unsigned>(options.num_stages));
    if (random() % 2 == 0) {  // Around what is needed.
      const int64_t least = Oracle{profile, options}.best().least_memory;
      options.memory_bytes = std::max<int64_t>(1, least * static_cast<int>(85 + random() % 40) / 100);
    }
    const Oracle oracle{profile, options};
    const Oracle::Best best = oracle.best();
    CAPTURE(round);
    if (!best.score) {
      ++num_infeasible;
      try {
        best_split(profile, options);
        FAIL("a cut that does not fit");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInfeasible);
        CHECK(std::string(error.what()).find(" " + std::to_string(best.least_memory) + " bytes") != std::string::npos);
      }
      continue;
    }
    const Split split = best_split(profile, options);
    const auto [score, memory] = oracle.score(split.first_layer);
    CHECK(split.exact);
    CHECK(score == *best.score);
    CHECK(split.bottleneck_seconds == std::get<0>(score));
    CHECK(most_memory_bytes(split, oracle.num_ranks) == memory);
  }
  CHECK(num_infeasible > 50);
}

TEST_CASE("large graphs: proved with a rank for each stage, never worse than even cuts with fewer ranks") {
  std::mt19937 random(3);
  Profile profile = random_profile(random, 1000, 0);
  for (int i = 0; i + 3 < 1000; i += 3) profile.edges.push_back({i, i + 3});  // A residual network.
  const SplitOptions options{.num_stages = 64, .num_micro_batches = 128};
  const Split split = best_split(profile, options);
  CHECK(split.exact);
  CHECK(split.bottleneck_seconds <= even_split(profile, options).bottleneck_seconds);
  double total = 0;
  for (const Split::Stage& stage : split.stages) total += stage.seconds;
  CHECK(split.bottleneck_seconds >= total / 64);

  SplitOptions dealt = options;
  dealt.num_ranks = 8;
  const Split few = best_split(profile, dealt);
  CHECK(few.bottleneck_seconds <= even_split(profile, dealt).bottleneck_seconds);
  CHECK(few.bottleneck_seconds >= total / 8);
}

TEST_CASE("what is no cut is refused") {
  const Profile profile = chain({1, 2, 3});
  CHECK_THROWS_WITH_AS(best_split(profile, {.num_stages = 4}), doctest::Contains("use at most 3"), Error);
  CHECK_THROWS_WITH_AS(best_split(profile, {.num_stages = 2, .num_ranks = 3}), doctest::Contains("use 1 to 2 ranks"), Error);
  CHECK_THROWS_AS(best_split(profile, {.num_stages = 0}), Error);
  CHECK_THROWS_WITH_AS(given_split(profile, {.num_stages = 3}, {1}), doctest::Contains("but the layout has 3"), Error);
  CHECK_THROWS_WITH_AS(given_split(profile, {.num_stages = 3}, {2, 2}), doctest::Contains("cuts rise"), Error);
  CHECK_THROWS_AS(given_split(profile, {.num_stages = 2}, {3}), Error);
  Profile backwards = profile;
  backwards.edges.push_back({2, 1});
  CHECK_THROWS_WITH_AS(best_split(backwards, {}), doctest::Contains("edge 2 to 1"), Error);
}

TEST_CASE("the table tells what every stage got") {
  Profile profile = chain({0.002, 0.004, 0.002});
  profile.layers[1].weight_bytes = 2'000'000;
  const std::string table = describe(profile, given_split(profile, {.num_stages = 2}, {1}));
  CHECK(table ==
        "stage  layers        forward ms  backward ms  transfer ms  weights MB  memory MB  of slowest\n"
        "    0  l0                 1.000        1.000        0.000        0.00       0.00        33 %\n"
        "    1  l1 .. l2 (2)       3.000        3.000        0.000        2.00       6.00       100 %\n");
}

TEST_CASE("a profile survives JSON, and what is wrong in a file is said") {
  std::mt19937 random(1);
  Profile profile = random_profile(random, 5, 4);
  profile.model = "m", profile.micro_batch = 8;
  profile.layers[2].stash_bytes = 100, profile.layers[2].output_kept = OutputKept::kByReaders;
  const Json json = to_json(profile);
  CHECK(to_json(profile_from_json(json)) == json);

  const auto refused = [&](const char* text, auto&& change) {
    Json changed = json;
    change(changed);
    CHECK_THROWS_WITH_AS(profile_from_json(changed), doctest::Contains(text), Error);
  };
  refused("'edges' is missing", [](Json& j) { j.erase("edges"); });
  refused("layers[1]: 'name' is 3; expected text", [](Json& j) { j["layers"][1]["name"] = 3; });
  refused("did you mean 'stash_bytes'", [](Json& j) { j["layers"][0]["stash_byte"] = 3; });
  refused("is -1", [](Json& j) { j["layers"][0]["forward_seconds"] = -1; });
  refused("'weight_bytes' is 1.5; expected a whole number", [](Json& j) { j["layers"][0]["weight_bytes"] = 1.5; });
  refused("expected a whole number from 0 to", [](Json& j) { j["layers"][0]["weight_bytes"] = INT64_MAX; });
  refused("is 9; expected a whole number from 0 to 4", [](Json& j) { j["edges"].push_back({3, 9}); });
  refused("expected a pair of layer indices", [](Json& j) { j["edges"].push_back({3}); });
  refused("one of: no itself readers", [](Json& j) { j["layers"][0]["output_kept"] = "yes"; });
  refused("'layers' is empty", [](Json& j) { j["layers"] = Json::array(), j["edges"] = Json::array(); });
}

}  // namespace
}  // namespace cohort
