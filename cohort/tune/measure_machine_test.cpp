#include "cohort/tune/measure_machine.h"

#include <doctest/doctest.h>

#include "cohort/base/random.h"

namespace cohort {
namespace {

/// Ranks that take `factors[rank]` times a second, give or take `noise` of it, in four rounds at three sizes.
std::vector<std::vector<std::vector<double>>> measured(const std::vector<double>& factors, double noise, uint64_t seed) {
  std::vector<std::vector<std::vector<double>>> out;
  uint64_t draws = 0;
  for (const double factor : factors) {
    auto& rank = out.emplace_back();
    for (const double size : {1.0, 4.0, 16.0}) {
      auto& rounds = rank.emplace_back();
      for (int round = 0; round < 4; ++round) {
        const double unit = static_cast<double>(random_bits(seed, 3, ++draws) >> 11) * 0x1p-53;
        rounds.push_back(size * factor * (1 + noise * (2 * unit - 1)));
      }
    }
  }
  return out;
}

TEST_CASE("speed classes: noise makes none, a slow rank makes one") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CHECK(SpeedClasses(measured({1, 1, 1, 1}, 0.15, seed)).num_classes() == 1);
    const SpeedClasses two(measured({1, 3, 1}, 0.15, seed));
    CHECK(two.of_rank() == std::vector{0, 1, 0});
    CHECK(two.times_slower(1) == doctest::Approx(3).epsilon(0.2));
    CHECK(two.rank_of(1) == 1);
  }
}

TEST_CASE("speed classes: class 0 is that of rank 0, however slow") {
  const SpeedClasses found(measured({4, 1, 2, 1, 4}, 0.02, 1));
  CHECK(found.of_rank() == std::vector{0, 1, 2, 1, 0});
  CHECK(found.rank_of(2) == 2);
  CHECK(found.times_slower(0) == doctest::Approx(4).epsilon(0.05));
  CHECK(found.times_slower(1) == 1);
}

TEST_CASE("speed classes: a hiccup in some rounds is none") {
  auto seconds = measured({1, 1}, 0, 1);
  for (auto& size : seconds[1]) size[2] *= 10;
  CHECK(SpeedClasses(seconds).num_classes() == 1);
  CHECK(SpeedClasses(measured({1, 1.05}, 0, 1)).num_classes() == 1);
  CHECK(SpeedClasses(measured({1}, 0, 1)).num_classes() == 1);
}

}  // namespace

}  // namespace cohort
