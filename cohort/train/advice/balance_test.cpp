#include "cohort/train/advice/balance.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "tests/support/errors.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

using namespace cohort;

namespace {

/// Ranks that need `seconds[rank]` for a sample and `fixed` for a step, give or take `noise` of it; each has its own Balance.
struct Cluster {
  Cluster(std::vector<double> seconds_of_sample, int64_t units, double noise_ = 0, double fixed_ = 0)
      : seconds(std::move(seconds_of_sample)), num_units(units), noise(noise_), fixed(fixed_) {
    ranks.assign(seconds.size(), Balance(std::vector<double>(seconds.size(), 1.0), units));
  }
  std::vector<Share> shares() const { return shares_of_batch(num_units, ranks[0].weights()); }
  double step_seconds() const {
    double slowest = 0;
    const std::vector<Share> now = shares();
    for (size_t rank = 0; rank < seconds.size(); ++rank)
      slowest = std::max(slowest, now[rank].size() > 0 ? fixed + seconds[rank] * static_cast<double>(now[rank].size()) : 0);
    return slowest;
  }
  /// A round of steps, then the exchange of measurements. True when shares changed; fails where ranks disagree.
  bool round(const std::function<double(size_t rank, int step)>& hiccup = {}) {
    const std::vector<Share> now = shares();
    std::vector<double> measured;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (int step = 0; step < Balance::kStepsOfRound; ++step) {
        const double samples = static_cast<double>(now[rank].size());
        const double unit = static_cast<double>(random_bits(7, rank, ++draws) >> 11) * 0x1p-53;
        const double factor = 1 + noise * (2 * unit - 1) + (hiccup ? hiccup(rank, step) : 0);
        ranks[rank].add_step((fixed + seconds[rank] * samples) * factor, now[rank].size());
      }
      measured.push_back(ranks[rank].seconds_per_sample());
    }
    const bool changed = ranks[0].update(measured);
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      REQUIRE(ranks[rank].update(measured) == changed);
      REQUIRE(ranks[rank].weights() == ranks[0].weights());
    }
    num_changes += changed;
    return changed;
  }

  std::vector<double> seconds;
  int64_t num_units;
  double noise, fixed;
  std::vector<Balance> ranks;
  int num_changes = 0;
  uint64_t draws = 0;
};

}  // namespace

TEST_CASE("balance: one rank three times slower gets a third of what the others get, in few rounds, and then nothing changes") {
  Cluster cluster({1, 1, 3}, 70);
  const double before = cluster.step_seconds();
  for (int round = 0; round < 5; ++round) cluster.round();
  const std::vector<Share> shares = cluster.shares();
  CHECK(std::abs(static_cast<double>(shares[2].size()) - 10) <= 1);
  CHECK(std::abs(static_cast<double>(shares[0].size()) - 30) <= 1);
  CHECK(cluster.step_seconds() < before / 2);
  CHECK(cluster.num_changes <= 4);
  const int settled = cluster.num_changes;
  for (int round = 0; round < 50; ++round) cluster.round();
  CHECK(cluster.num_changes == settled);
}

TEST_CASE("balance: noise of 10 % changes nothing once the shares are right") {
  Cluster cluster({1, 1, 3}, 70, 0.1);
  for (int round = 0; round < 6; ++round) cluster.round();
  const int settled = cluster.num_changes;
  double longest = 0;
  for (int round = 0; round < 200; ++round) {
    cluster.round();
    longest = std::max(longest, cluster.step_seconds());
  }
  CHECK(cluster.num_changes <= settled + 2);
  CHECK(longest <= 30 * 1.15);  // The best is 30 seconds.
  Cluster equal({1, 1, 1, 1}, 64, 0.1);
  for (int round = 0; round < 200; ++round) equal.round();
  CHECK(equal.num_changes == 0);
}

TEST_CASE("balance: hiccups in a minority of the steps change nothing") {
  Cluster cluster({1, 1}, 64);
  for (int round = 0; round < 10; ++round)
    CHECK(!cluster.round([](size_t rank, int step) { return rank == 1 && step % 3 == 0 ? 50.0 : 0.0; }));
}

TEST_CASE("balance: a fixed cost of each step is taken into account") {
  // Step time 10 + samples and 10 + 4 samples: level at 54 and 10 of 64 (64 and 50 seconds; one unit more for the slow rank: 63 and 54).
  Cluster cluster({1, 4}, 64, 0, 10);
  for (int round = 0; round < 10; ++round) cluster.round();
  CHECK(cluster.step_seconds() <= 64 * 1.06);
}

TEST_CASE("balance: a rank that gets faster or slower later is followed") {
  Cluster cluster({1, 1}, 60);
  for (int round = 0; round < 3; ++round) cluster.round();
  cluster.seconds = {2, 1};
  for (int round = 0; round < 6; ++round) cluster.round();
  CHECK(std::abs(static_cast<double>(cluster.shares()[0].size()) - 20) <= 1);
  cluster.seconds = {1, 1};
  for (int round = 0; round < 6; ++round) cluster.round();
  CHECK(std::abs(static_cast<double>(cluster.shares()[0].size()) - 30) <= 1);
}

TEST_CASE("balance: a slow rank keeps one unit; a hopeless one gets none, and another chance later") {
  Cluster slow({1, 1, 1, 20}, 16);  // Its speed is 1/61 of all: above 1/32 it is not.
  for (int round = 0; round < 6; ++round) slow.round();
  CHECK(slow.shares()[3].size() == 0);
  Cluster coarse({1, 1, 1, 8}, 16);  // 1/25 of all: two thirds of a unit, yet one.
  for (int round = 0; round < 6; ++round) coarse.round();
  CHECK(coarse.shares()[3].size() == 1);
  slow.seconds[3] = 1;  // It recovers.
  for (int round = 0; round < Balance::kRoundsToProbe + 8; ++round) slow.round();
  CHECK(slow.shares()[3].size() == 4);
}

TEST_CASE("balance: without numbers of all ranks nothing changes; wrong numbers are refused") {
  Balance balance({1, 1}, 8);
  CHECK(balance.seconds_per_sample() == 0);
  CHECK(!balance.update({0, 5}));
  CHECK(balance.update({1, 0}));  // The 5 of the round before stands.
  CHECK(balance.weights()[0] > 0.6);
  CHECK(contains(error_of([&] { balance.update({1}); }), "1 measurements for 2 ranks"));
  CHECK(contains(error_of([&] { balance.update({1, -1}); }), "rank 1 measured -1"));
  CHECK(contains(error_of([&] { balance.update({NAN, 1}); }), "rank 0 measured"));
  CHECK(contains(error_of([] { Balance({1, 0}, 8); }), "weight of rank 1"));
}

TEST_CASE("gather_numbers: every rank's number in rank order") {
  for (const int size : {1, 3}) {
    run_thread_ranks(size, [&](Group& group) {
      const std::vector<double> got = gather_numbers(group, 10 + group.rank(), "speed");
      for (int rank = 0; rank < size; ++rank)
        if (std::ssize(got) != size || got[static_cast<size_t>(rank)] != 10 + rank) FAIL("not in rank order");
    });
  }
}
