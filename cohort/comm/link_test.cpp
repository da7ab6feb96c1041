#include "cohort/comm/link.h"

#include <doctest/doctest.h>

#include <vector>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

TEST_CASE("link: every rank gets the same plausible estimate") {
  for (const char* backend : {"shm", "gloo"}) {
    std::vector<LinkEstimate> estimates(3);
    run_thread_ranks(3, [&](Group& group) { estimates[static_cast<size_t>(group.rank())] = measure_link(group, 0.1); },
                     {.backend = backend, .timeout_seconds = 20});
    for (const LinkEstimate& estimate : estimates) {
      CHECK(estimate.latency_seconds > 0);
      CHECK(estimate.latency_seconds < 1);
      CHECK(estimate.bytes_per_second > 1e5);
      CHECK(estimate.bytes_per_second < 1e12);
      CHECK(estimate.latency_seconds == estimates[0].latency_seconds);
      CHECK(estimate.bytes_per_second == estimates[0].bytes_per_second);
    }
  }
}

TEST_CASE("link: seconds of an exchange; one rank has no link") {
  const LinkEstimate link{1e-3, 1e6};
  CHECK(link.seconds(500000, 2) == doctest::Approx(0.502));
  Group alone;
  const LinkEstimate none = measure_link(alone);
  CHECK(none.bytes_per_second == 0);
  CHECK(none.seconds(1000, 1) == 0);
}

}  // namespace
}  // namespace cohort
