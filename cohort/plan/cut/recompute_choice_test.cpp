
#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/plan/cost/memory.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/plan/cut/split.h"

namespace cohort {
namespace {

LayerProfile layer(double forward, int64_t weight_bytes, int64_t stash_bytes, int64_t output_bytes, OutputKept kept = OutputKept::kNo) {
  return {"l", "test", forward, 0, 0, weight_bytes, stash_bytes, output_bytes, kept};
}

/// The stage's memory by the account of stash_of_stages(), which was written apart.
class StageAccount {
 public:
  StageAccount(const Profile& profile, const RecomputeOptions& options)
      : profile_(profile), options_(options), stage_(options.first_layer > 0 ? 1 : 0) {
    std::vector<int> stage_of;
    for (int layer = 0; layer < static_cast<int>(profile.layers.size()); ++layer)
      stage_of.push_back(layer < options.first_layer ? 0 : layer < options.end_layer ? stage_ : stage_ + 1);
    graph_ = cut_profile(profile, stage_of);
  }
  int64_t bytes_with(const std::vector<bool>& recomputed) const {
    const StageStash stash = stash_of_stages(profile_, graph_, recomputed)[static_cast<size_t>(stage_)];
    int64_t weights = 0;
    for (int layer = options_.first_layer; layer < options_.end_layer; ++layer)
      weights += profile_.layers[static_cast<size_t>(layer)].weight_bytes;
    return static_cast<int64_t>(static_cast<double>(weights) * (2 + options_.optimizer_bytes_factor)) +
           options_.kept_micro_batches * stash.micro_batch_bytes + stash.recompute_bytes;
  }

 private:
  const Profile& profile_;
  const RecomputeOptions& options_;
  const int stage_;
  StageGraph graph_;
};

TEST_CASE("what recomputed layers keep") {
  Profile profile;
  profile.layers = {layer(1, 10, 5, 3), layer(1, 100, 50, 20, OutputKept::kByReaders), layer(1, 0, 30, 7, OutputKept::kByItself),
                    layer(1, 0, 40, 8), layer(1, 0, 9, 9)};
  profile.edges = {{-1, 0}, {0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}, {2, 4}};
  const RecomputeOptions stage{.first_layer = 1, .end_layer = 4, .kept_micro_batches = 2, .optimizer_bytes_factor = 2};
  const StageAccount account(profile, stage);
  const auto bytes = [&](const std::vector<bool>& layers) { return account.bytes_with(layers); };
  const int64_t received = 3, base = 100 * 4 + 2 * (50 + 30 + 40 + received);
  CHECK(bytes({0, 0, 0, 0, 0}) == base);
  CHECK(bytes({0, 1, 0, 0, 0}) == base - 2 * 30 + 30);             // Its output stays for layer 2.
  CHECK(bytes({0, 0, 1, 0, 0}) == base - 2 * 30 + 30);             // Its input stays anyway; its output was its own affair.
  CHECK(bytes({0, 0, 0, 1, 0}) == base - 2 * 40 + 40);             // Its input is kept by layer 2.
  CHECK(bytes({0, 0, 1, 1, 0}) == base - 2 * (30 + 40 - 7) + 40);  // Not any more.
  CHECK(bytes({1, 0, 0, 0, 1}) == base);                           // Of other stages.

  const Split split = given_split(profile, {.num_stages = 3, .num_micro_batches = 9, .optimizer_bytes_factor = 2}, {1, 4});
  CHECK(split.stages[1].memory_bytes == base);
}

TEST_CASE("the cheapest set that fits, against all sets of small stages") {
  std::mt19937 random(11);
  const auto number = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  int num_infeasible = 0, num_chosen = 0;
  for (int round = 0; round < 1000; ++round) {
    CAPTURE(round);
    Profile profile;
    const int num_layers = 1 + number(9);
    for (int i = 0; i < num_layers; ++i) {
      const int output = number(20);
      const auto kept = static_cast<OutputKept>(number(2));
      profile.layers.push_back(layer(number(8), number(20), number(60) + (kept == OutputKept::kNo ? 0 : output), output, kept));
      profile.edges.push_back({i - 1, i});
      if (i > 1) profile.edges.push_back({number(i - 1), i});
    }
    RecomputeOptions options{.first_layer = number(num_layers - 1), .kept_micro_batches = number(4)};
    options.end_layer = options.first_layer + 1 + number(num_layers - options.first_layer - 1);
    const StageAccount account(profile, options);
    const int64_t base = account.bytes_with(std::vector<bool>(profile.layers.size()));
    options.memory_bytes = 1 + base * number(110) / 100;

    int64_t least = std::numeric_limits<int64_t>::max();
    double cheapest = std::numeric_limits<double>::infinity();
    const int size = options.end_layer - options.first_layer;
    for (int set = 0; set < 1 << size; ++set) {
      std::vector<bool> layers(profile.layers.size());
      double seconds = 0;
      for (int i = 0; i < size; ++i)
        if (set >> i & 1) layers[options.first_layer + i] = true, seconds += profile.layers[options.first_layer + i].forward_seconds;
      const int64_t bytes = account.bytes_with(layers);
      least = std::min(least, bytes);
      if (bytes <= options.memory_bytes) cheapest = std::min(cheapest, seconds);
    }
    if (least > options.memory_bytes) {
      ++num_infeasible;
      try {
        choose_recompute(profile, options);
        FAIL("fits nowhere");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInfeasible);
        CHECK(std::string(error.what()).find("the least is " + std::to_string(least) + " bytes") != std::string::npos);
      }
      continue;
    }
    const RecomputeChoice choice = choose_recompute(profile, options);
    CHECK(choice.exact);
    CHECK(choice.seconds == cheapest);
    CHECK(choice.memory_bytes <= options.memory_bytes);
    CHECK(choice.memory_bytes == account.bytes_with(choice.layers));
    num_chosen += cheapest > 0;
  }
  CHECK(num_infeasible > 100);
  CHECK(num_chosen > 100);
}

TEST_CASE("a large stage: it fits, and no layer of the choice can be left out") {
  std::mt19937 random(2);
  Profile profile;
  for (int i = 0; i < 400; ++i) {
    profile.layers.push_back(layer(1 + static_cast<double>(random() % 100) / 7, 0, 1000 + static_cast<int64_t>(random() % 5000), 10));
    profile.edges.push_back({i - 1, i});
  }
  RecomputeOptions options{.end_layer = 400, .kept_micro_batches = 3};
  const StageAccount account(profile, options);
  options.memory_bytes = account.bytes_with(std::vector<bool>(400)) / 2;
  const RecomputeChoice choice = choose_recompute(profile, options);
  CHECK(choice.memory_bytes <= options.memory_bytes);
  std::vector<bool> fewer = choice.layers;
  for (size_t i = 0; i < fewer.size(); ++i) {
    if (!choice.layers[i]) continue;
    fewer[i] = false;
    CHECK(account.bytes_with(fewer) > options.memory_bytes);
    fewer[i] = true;
  }
}

TEST_CASE("no limit, no recompute; what is no stage is refused") {
  Profile profile;
  profile.layers = {layer(1, 10, 5, 3)};
  CHECK(choose_recompute(profile, {.end_layer = 1}).layers == std::vector<bool>{false});
  CHECK_THROWS_AS(choose_recompute(profile, {.end_layer = 2}), Error);
  CHECK_THROWS_AS(choose_recompute(profile, {.first_layer = 1, .end_layer = 1}), Error);
  CHECK_THROWS_AS(choose_recompute(profile, {.end_layer = 1, .memory_bytes = -1}), Error);
}

}  // namespace
}  // namespace cohort
