#include "cohort/train/advice/exchange_advice.h"

#include <doctest/doctest.h>

#include <vector>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
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
