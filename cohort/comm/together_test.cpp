#include "cohort/comm/together.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

TEST_CASE("work that takes longer than the time-out ends no exchange, over memory and over a network") {
  for (const char* const backend : {"shm", "gloo"}) {
    std::atomic<int> num_done{0};
    const GroupOptions options{.backend = backend, .timeout_seconds = 0.4};
    run_thread_ranks(
        3,
        [&](Group& group) {
          const auto slow = [&] {
            if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
            ++num_done;
          };
          together_patiently(group, "save", slow, [] { return 0; });
          CHECK(num_done == 3);
          // All ranks get the failure of one, with its code.
          try {
            together_patiently(
                group, "save",
                [&] {
                  if (group.rank() == 2) fail(ErrorCode::kInfeasible, "no room");
                },
                [] { return 0; });
            FAIL_CHECK("went on");
          } catch (const Error& error) {
            CHECK(error.code() == ErrorCode::kInfeasible);
            CHECK(std::string(error.what()) == "no room");
          }
        },
        options);
  }
}

}  // namespace
}  // namespace cohort
