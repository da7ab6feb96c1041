#include "cohort/job/remedy.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

TEST_CASE("--remedy: names and numbers") {
  CHECK(parse_remedy("").name.empty());
  CHECK(parse_remedy("rate:0.25") == Remedy{"rate", 0.25});
  CHECK(parse_remedy("staleness") == Remedy{"staleness", 0});
  CHECK(parse_remedy("compensate") == Remedy{"compensate", 0.04});
  CHECK(parse_remedy("compensate:2") == Remedy{"compensate", 2});
  CHECK(parse_remedy("lookahead").name == "lookahead");
  CHECK(parse_remedy("drop:0") == Remedy{"drop", 0});
  for (const char* text : {"rat", "rate", "rate:", "rate:0", "rate:2", "rate:nan", "staleness:1", "staleness:", "lookahead:1",
                           "compensate:-1", "compensate:x", "drop", "drop:-1", "drop:inf", ":", ":3"})
    CHECK_THROWS_AS_MESSAGE(parse_remedy(text), Error, text);
}

}  // namespace
}  // namespace cohort
