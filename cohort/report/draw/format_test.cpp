#include "cohort/report/draw/format.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace cohort::report {
namespace {

TEST_CASE("format: significant digits") {
  CHECK(significant(0.28141, 3) == "0.281");
  CHECK(significant(-2.3456, 3) == "-2.35");
  CHECK(significant(5213.4, 3) == "5,213");
  CHECK(significant(100, 3) == "100");
  CHECK(significant(0.000123, 2) == "0.00012");
  CHECK(significant(3.14159e-5, 2) == "3.1e-5");
  CHECK(significant(2.5e12, 2) == "2.5e12");
  CHECK(significant(1e-300, 1) == "1e-300");
  CHECK(significant(0, 3) == "0");
  CHECK(significant(std::nan(""), 3) == "\u2013");
  CHECK(significant(-std::numeric_limits<double>::infinity(), 3) == "\u2212\u221e");
}

TEST_CASE("format: percent, times, counts, and numbers far beyond what is expected") {
  CHECK(percent_text(0.9009) == "90.1 %");
  CHECK(percent_text(1) == "100.0 %");
  CHECK(percent_text(std::nan("")) == "\u2013");
  CHECK(percent_text(1e300).ends_with(" %"));
  CHECK(milliseconds_text(0.0193) == "19.3 ms");
  CHECK(seconds_text(192.4) == "3 min 12 s");
  CHECK(seconds_text(0) == "0 s");
  CHECK(seconds_text(1e300) == "1.00e300 s");
  CHECK(seconds_text(-1) == "-1.00 s");
  CHECK(plural(1, "worker") == "1 worker");
  CHECK(plural(1720, "step") == "1,720 steps");
  CHECK(count_text(std::nullopt) == "\u2013");
}

TEST_CASE("format: coordinates lose trailing zeros and nothing else") {
  CHECK(coordinate(12) == "12");
  CHECK(coordinate(100) == "100");
  CHECK(coordinate(0.04) == "0");
  CHECK(coordinate(-0.01) == "0");
  CHECK(coordinate(12.345, 2) == "12.35");
  CHECK(coordinate(-3.5) == "-3.5");
  CHECK(coordinate(100, 0) == "100");
}

}  // namespace
}  // namespace cohort::report
