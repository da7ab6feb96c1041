#include "cohort/async/simulated/clock_only.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

SyncConditions conditions(const std::string& clock, int64_t bytes = 0) {
  return {.clock = parse_virtual(clock), .global_batch = 128, .pull_bytes = bytes, .push_bytes = bytes};
}

TEST_CASE("pace of even workers: all of their speeds together, whatever they wait for") {
  const SyncConditions even = conditions("workers=4,compute=0.02");
  for (const char* sync : {"step", "async", "stale:2", "local:4", "diloco:8"})
    CHECK_MESSAGE(clock_only_pace(parse_sync(sync), even).samples_per_second == doctest::Approx(6400), sync);
  CHECK(clock_only_pace(parse_sync("step"), even).mean_late_steps == 0);
  // All pull at one moment and push one after the other: 0, 1, 2 and 3 pushes late, a quarter of a step each.
  CHECK(clock_only_pace(parse_sync("async"), even).mean_late_steps == doctest::Approx(1.5 / 4));
  // Workers that differ a little are N - 1 pushes late.
  CHECK(clock_only_pace(parse_sync("async"), conditions("workers=4,compute=0.02,speed=lognormal:0.05")).mean_late_steps ==
        doctest::Approx(0.75).epsilon(0.03));
}

TEST_CASE("pace with one worker 4 times slower: step and local wait for it, async does not") {
  const SyncConditions slow = conditions("workers=4,compute=0.02,slow=3:4");
  CHECK(clock_only_pace(parse_sync("step"), slow).samples_per_second == doctest::Approx(1600));
  CHECK(clock_only_pace(parse_sync("local:4"), slow).samples_per_second == doctest::Approx(1600));
  CHECK(clock_only_pace(parse_sync("async"), slow).samples_per_second == doctest::Approx(3.25 * 1600).epsilon(0.03));
  const double stale = clock_only_pace(parse_sync("stale:1"), slow).samples_per_second;
  CHECK(stale > 1700);
  CHECK(stale < 3.25 * 1600);
}

TEST_CASE("pace over a link: a ring in each step or round, one server's link without waiting") {
  // 1 MB at 1 MB/s: a ring of 4 sends 6 messages of 250 KB, 1.5 s.
  const SyncConditions link = conditions("workers=4,compute=0.02,link=0us:1MB", 1'000'000);
  CHECK(clock_only_pace(parse_sync("step"), link).samples_per_second == doctest::Approx(128 / 1.52));
  CHECK(clock_only_pace(parse_sync("local:16"), link).samples_per_second == doctest::Approx(16 * 128 / (16 * 0.02 + 1.5)));
  CHECK(clock_only_pace(parse_sync("async"), link).samples_per_second == doctest::Approx(32).epsilon(0.05));  // A push a second.
}

TEST_CASE("pace: pauses cost step more than async; more steps where they are rare; the same numbers each time") {
  const SyncConditions pauses = conditions("workers=4,compute=0.02,pauses=1:0.5");
  const SyncPace step = clock_only_pace(parse_sync("step"), pauses), async = clock_only_pace(parse_sync("async"), pauses);
  CHECK(async.samples_per_second > 1.5 * step.samples_per_second);
  CHECK(clock_only_pace(parse_sync("async"), pauses).samples_per_second == async.samples_per_second);
  CHECK(num_steps_of_pace(pauses) == 1000);
  CHECK(num_steps_of_pace(conditions("workers=4,compute=0.02")) == 100);
  CHECK(num_steps_of_pace(conditions("workers=4,compute=1e-6,pauses=1000:1")) == 10'000);
}

TEST_CASE("pace: what is not simulated, and workers without samples, are refused") {
  CHECK_THROWS_AS(clock_only_pace(parse_sync("queue"), conditions("workers=4,compute=0.02")), Error);
  CHECK_THROWS_AS(clock_only_pace(parse_sync("stale:0"), conditions("workers=4,compute=0.02")), Error);
  CHECK_THROWS_AS(clock_only_pace(parse_sync("async"), conditions("workers=200,compute=0.02")), Error);
}

}  // namespace
}  // namespace cohort
