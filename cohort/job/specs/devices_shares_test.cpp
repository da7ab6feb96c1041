#include "cohort/job/specs/devices.h"

#include <doctest/doctest.h>

#include "tests/support/errors.h"
#include "tests/support/text.h"

using namespace cohort;

TEST_CASE("parse_shares: what it takes and what it refuses") {
  CHECK(!parse_shares("equal").automatic);
  CHECK(parse_shares("equal").of(3) == std::vector<double>{1, 1, 1});
  CHECK(parse_shares("auto").automatic);
  CHECK(parse_shares("auto").of(2) == std::vector<double>{1, 1});
  CHECK(parse_shares("3:1:0.5").of(3) == std::vector<double>{3, 1, 0.5});
  CHECK(!parse_shares("3:1").automatic);
  CHECK(contains(error_of([] { parse_shares("3:1").of(4); }), "--shares: 2 numbers for 4 ranks; it is equal, auto, or"));
  CHECK(contains(error_of([] { parse_shares("3:0"); }), "--shares 3:0: 0 is not a positive number"));
  CHECK(contains(error_of([] { parse_shares("3:-1"); }), "-1 is not a positive number"));
  CHECK(contains(error_of([] { parse_shares("3:"); }), "'' is not a number"));
  CHECK(contains(error_of([] { parse_shares(""); }), "--shares says nothing"));
  CHECK(contains(error_of([] { parse_shares("euqal"); }), "did you mean 'equal'?"));
  CHECK(contains(error_of([] { parse_shares("1:inf"); }), "--shares 1:inf: "));
  CHECK(contains(error_of([] { parse_shares("1:nan"); }), "--shares 1:nan: "));
}
