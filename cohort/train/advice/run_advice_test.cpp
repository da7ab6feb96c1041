#include "cohort/train/advice/run_advice.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

/// `seconds[r]` for a sample, `samples[r]` of them a step, over ten steps that take `besides` more than the slowest computes.
std::vector<ShareTimes> ranks_with(const std::vector<double>& seconds, const std::vector<double>& samples, double besides) {
  double slowest = 0;
  for (size_t rank = 0; rank < seconds.size(); ++rank) slowest = std::max(slowest, seconds[rank] * samples[rank]);
  std::vector<ShareTimes> out;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const double compute = seconds[rank] * samples[rank];
    out.push_back({10, 10 * samples[rank], 10 * compute, 10 * (slowest - compute + besides), 10 * (slowest + besides)});
  }
  return out;
}

TEST_CASE("share waste: a rank that takes three times as long makes the other wait two thirds of its time") {
  CHECK(measured_waste(ranks_with({1, 3}, {8, 8}, 0)) == doctest::Approx((24.0 - 8) / 48));
  CHECK(measured_waste(ranks_with({1, 3}, {12, 4}, 0)) == doctest::Approx(0));
  // The exchange itself is nobody's waiting.
  CHECK(measured_waste(ranks_with({1, 1, 1}, {4, 4, 4}, 5)) == doctest::Approx(0));
  CHECK(measured_waste(ranks_with({1, 3}, {8, 8}, 4)) == doctest::Approx(16.0 / 56));
}

TEST_CASE("share waste: what equal shares would cost, forecast from steps with other shares, is what they do cost") {
  for (const double besides : {0.0, 4.0})
    for (const auto& seconds : std::vector<std::vector<double>>{{1, 3}, {3, 1}, {1, 2, 4}, {1, 1, 1}}) {
      std::vector<double> by_speed;
      for (const double each : seconds) by_speed.push_back(24 / each);
      const std::vector<double> equal(seconds.size(), 8);
      const PlannedWaste found = waste_of_equal_shares(ranks_with(seconds, by_speed, besides), 8.0 * static_cast<double>(seconds.size()));
      const std::vector<ShareTimes> measured = ranks_with(seconds, equal, besides);
      CHECK(found.waste == doctest::Approx(measured_waste(measured)));
      CHECK(found.step_seconds == doctest::Approx(measured[0].step_seconds / 10));
    }
  CHECK(!std::isfinite(waste_of_equal_shares(ranks_with({1, 3}, {8, 0}, 0), 8).waste));
}

TEST_CASE("share waste: what is told") {
  const auto equal = ranks_with({1, 3}, {8, 8}, 0), balanced = ranks_with({1, 3}, {12, 4}, 0);
  CHECK(!describe_waste(ranks_with({1, 1.05}, {8, 8}, 0), {}, false, 16, {}));  // Noise.
  CHECK(!describe_waste(std::vector<ShareTimes>(2), {}, true, 16, {}));         // Nothing measured.
  const auto uneven = describe_waste(equal, equal, false, 16, {});
  REQUIRE(uneven);
  CHECK(uneven->slowest_rank == 1);
  CHECK(uneven->measured_waste == doctest::Approx(1.0 / 3));
  CHECK(uneven->sentence.find("rank 1 takes 3 times as long") == 0);
  CHECK(uneven->sentence.find("33 % of the workers' time") != std::string::npos);
  CHECK(uneven->sentence.find("shares auto") != std::string::npos);
  const auto moved = describe_waste(balanced, equal, true, 16, {});
  REQUIRE(moved);
  CHECK(moved->sentence.find("equal shares would waste 33 % (predicted), 33 % measured; with these shares 0 %") != std::string::npos);
  CHECK(moved->measured_equal_step_seconds == doctest::Approx(24));
  CHECK(moved->measured_step_seconds == doctest::Approx(12));
  const auto planned = describe_waste(balanced, {}, true, 16, {.waste = 0.3, .step_seconds = 20});
  REQUIRE(planned);
  CHECK(planned->sentence.find("equal shares would waste 30 % (predicted); with") != std::string::npos);
  CHECK(planned->predicted_equal_step_seconds == 20);
  CHECK(!std::isfinite(planned->measured_equal_waste));
}

TEST_CASE("share waste: steps are told apart by the shares that they had, and the first of the process is none") {
  ShareWaste waste(true);
  const auto step = [](int64_t number, double compute) {
    StepRecord record{.step = number};
    record.compute_seconds = compute, record.exchange_seconds = 1, record.step_seconds = compute + 1;
    return record;
  };
  Group alone;
  waste.add_step(step(1, 100), 8);
  CHECK(!waste.summary(alone, 8, {}));  // One rank, equal shares: nothing is worth telling.
  waste.add_step(step(2, 4), 8), waste.add_step(step(3, 4), 8);
  waste.new_shares(5);
  waste.add_step(step(4, 4), 8);
  waste.add_step(step(5, 2), 4);
  const auto told = waste.summary(alone, 8, {});
  REQUIRE(told);
  CHECK(told->seconds_per_sample == std::vector<double>{0.5});
  CHECK(told->measured_step_seconds == doctest::Approx(3));
  CHECK(told->measured_equal_step_seconds == doctest::Approx(5));
}

}  // namespace

namespace {

TEST_CASE("advice: buckets of a model") {
  const std::vector<GradientBucket> buckets = gradient_buckets({{10, 10}, {10}, {50, 4}, {3}, {1000}}, 4 * 250);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].num_elements == 110);
  CHECK(buckets[0].buffer.parts[1].begin == 100);
  CHECK(buckets[1].num_elements == 203);
  CHECK(buckets[2].num_elements == 1000);
  CHECK(gradient_buckets({}).empty());
}

TEST_CASE("advice: measured on a live group, the same on every rank") {
  std::vector<AdviceRecord> advices(2);
  run_thread_ranks(2, [&](Group& group) {
    advices[static_cast<size_t>(group.rank())] =
        measure_advice(group, {0.01 * (1 + group.rank()), 0.001}, gradient_buckets({{256, 784}, {256}, {10, 256}, {10}}));
  });
  const AdviceRecord& advice = advices[0];
  CHECK(advice.sentence == advices[1].sentence);
  REQUIRE(advice.rows.size() == 6);
  CHECK(advice.rows[0].predicted_step_seconds == doctest::Approx(0.01));  // Rank 0's: of none.
  const int64_t num_elements = 256 * 784 + 256 + 2560 + 10;
  CHECK(advice.rows[0].sent_bytes == num_elements * 4);
  CHECK(advice.rows[2].sent_bytes == num_elements * 2);
  for (size_t i = 1; i < advice.rows.size(); ++i) CHECK(advice.rows[i].compress_seconds > 0);
  for (size_t i = 0; i < advice.rows.size(); ++i) CHECK(advice.rows[i].predicted_step_seconds == advices[1].rows[i].predicted_step_seconds);
}

}  // namespace

}  // namespace cohort
