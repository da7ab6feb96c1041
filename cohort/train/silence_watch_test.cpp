#include "cohort/train/silence_watch.h"

#include <doctest/doctest.h>

using namespace cohort;

TEST_CASE("silence is remarked on after five times the usual, but not before the least, then at each doubling") {
  SilenceWatch watch(10);
  double now = 100;
  watch.begin(now);
  for (int i = 0; i < 20; ++i) watch.heard(now += 4);
  CHECK(watch.usual_seconds() == doctest::Approx(4));
  CHECK(!watch.overdue(now + 19.9));
  CHECK(watch.overdue(now + 20.5) == doctest::Approx(20.5));
  CHECK(!watch.overdue(now + 40.9));
  CHECK(watch.overdue(now + 41));
  CHECK(!watch.overdue(now + 81.9));
  CHECK(watch.overdue(now + 82));
  watch.heard(now += 90);
  CHECK(watch.usual_seconds() == doctest::Approx(4));  // That silence was not usual.
  CHECK(!watch.overdue(now + 19.9));
  CHECK(watch.overdue(now + 20));
}

TEST_CASE("quick talkers are given the least; what never spoke five times that") {
  SilenceWatch watch(10);
  watch.begin(0);
  CHECK(!watch.overdue(49));
  CHECK(watch.overdue(50));
  watch.begin(60);
  watch.heard(61);
  CHECK(!watch.overdue(70));
  CHECK(watch.overdue(71));
}
