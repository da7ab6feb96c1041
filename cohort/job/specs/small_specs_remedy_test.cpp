#include "cohort/job/specs/small_specs.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

TEST_CASE("--remedy: a name and its number") {
  CHECK(parse_remedy("") == 1);
  CHECK(parse_remedy("rate:0.25") == 0.25);
  for (const char* text : {"rat", "rate", "rate:", "rate:0", "rate:2", "rate:nan", "drop:1", "lookahead", ":", ":3"})
    CHECK_THROWS_AS_MESSAGE(parse_remedy(text), Error, text);
}

}  // namespace
}  // namespace cohort
