#include "cohort/job/specs/small_specs.h"

#include <doctest/doctest.h>

#include "tests/support/errors.h"

namespace cohort {
namespace {

TEST_CASE("hints: pairs of layers, and anything else is refused in a line that names the option") {
  CHECK(parse_hints("").empty());
  CHECK(parse_hints("none").empty());
  const auto pairs = parse_hints("conv1:conv2,hidden:layer3");
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[0].student == "conv1");
  CHECK(pairs[0].teacher == "conv2");
  CHECK(pairs[1].student == "hidden");
  CHECK(pairs[1].teacher == "layer3");
  for (const char* text : {"conv1", "conv1:", ":conv1", "a:b,", ",", "a:b:c", "a:b,a:c"}) {
    CAPTURE(text);
    CHECK(error_of([&] { parse_hints(text); }).find("--hint") != std::string::npos);
  }
}

}  // namespace
}  // namespace cohort
