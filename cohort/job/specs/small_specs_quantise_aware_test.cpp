#include "cohort/job/specs/small_specs.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/errors.h"

namespace cohort {
namespace {

TEST_CASE("quantise-aware: bits and groups as they are said") {
  CHECK(!parse_quantise_aware(""));
  CHECK(!parse_quantise_aware("none"));
  CHECK(parse_quantise_aware("8")->bits == 8);
  CHECK(parse_quantise_aware("8")->group == 0);
  CHECK(parse_quantise_aware("4")->group == 64);
  CHECK(parse_quantise_aware("4:32")->bits == 4);
  CHECK(parse_quantise_aware("4:32")->group == 32);
}

TEST_CASE("quantise-aware: anything else is refused in a line that says what is known") {
  for (const char* text : {"2", "16", "8:64", "4:", "4:0", "4:-1", "4:x", "4:99999999999999999999", "int8", "4:64:1", " 8"}) {
    CAPTURE(text);
    const std::string found = error_of([&] { parse_quantise_aware(text); });
    CHECK(found.find("--quantize-aware") != std::string::npos);
    CHECK(found.find("expected 8") != std::string::npos);
  }
}

}  // namespace
}  // namespace cohort
