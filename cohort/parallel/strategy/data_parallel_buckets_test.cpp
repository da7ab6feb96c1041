#include "cohort/parallel/strategy/data_parallel_state.h"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "cohort/base/random.h"

namespace cohort {
namespace {

TEST_CASE("every parameter has exactly one location, aligned and apart from the others") {
  for (int trial = 0; trial < 200; ++trial) {
    const int count = 1 + static_cast<int>(random_bits(1, trial) % 40);
    std::vector<ParameterSize> sizes;
    for (int i = 0; i < count; ++i) {
      const uint64_t bits = random_bits(2, trial, i);
      const int bytes = bits % 5 == 0 ? 8 : 4;
      sizes.push_back({static_cast<int64_t>(bits % 7 == 0 ? 0 : (bits >> 8) % 5000), bytes, bytes});
    }
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random_bits(3, trial, i) % (i + 1)]);
    std::set<int> seen;
    for (const BucketPlan& bucket : plan_buckets(sizes, order, 4096, 16384)) {
      int64_t end = 0;
      for (size_t place = 0; place < bucket.parameters.size(); ++place) {
        const ParameterSize& size = sizes[bucket.parameters[place]];
        CHECK(seen.insert(bucket.parameters[place]).second);
        CHECK(size.kind == sizes[bucket.parameters[0]].kind);
        CHECK(bucket.offsets[place] >= end);
        CHECK(bucket.offsets[place] * size.element_bytes % 64 == 0);
        end = bucket.offsets[place] + size.num_elements;
      }
      CHECK(bucket.num_elements >= end);
      // Over the limit only when one gradient alone is.
      if (bucket.parameters.size() > 1) CHECK(bucket.num_elements * sizes[bucket.parameters[0]].element_bytes <= 16384);
    }
    CHECK(seen.size() == sizes.size());
  }
}

TEST_CASE("the first bucket closes early and the order is kept") {
  const std::vector<ParameterSize> sizes(6, ParameterSize{256, 4, 0});  // 1 KiB each.
  const std::vector<BucketPlan> plans = plan_buckets(sizes, {5, 4, 3, 2, 1, 0}, 1024, 2048);
  REQUIRE(plans.size() == 4);
  CHECK(plans[0].parameters == std::vector<int>{5});
  CHECK(plans[1].parameters == std::vector<int>{4, 3});
  CHECK(plans[3].parameters == std::vector<int>{0});
}

TEST_CASE("no parameters, no buckets") { CHECK(plan_buckets({}, {}, 1, 1).empty()); }

}  // namespace
}  // namespace cohort
