#include "cohort/base/clock.h"

#include <doctest/doctest.h>

namespace cohort {
namespace {

TEST_CASE("a wait counts the time in which its process ran, and of a gap a moment") {
  using std::chrono::milliseconds;
  const AwakeTimer::Clock::time_point start{};
  AwakeTimer timer(start);
  CHECK(timer.seconds(start + milliseconds(500)) == doctest::Approx(0.5));
  CHECK(timer.seconds(start + milliseconds(1200)) == doctest::Approx(1.2));
  CHECK(timer.seconds(start + std::chrono::hours(9)) == doctest::Approx(2.2));  // It slept.
  CHECK(timer.seconds(start + std::chrono::hours(9) + milliseconds(300)) == doctest::Approx(2.5));
  timer.restart(start + std::chrono::hours(10));
  CHECK(timer.seconds(start + std::chrono::hours(10) + milliseconds(250)) == doctest::Approx(0.25));
}

}  // namespace
}  // namespace cohort
