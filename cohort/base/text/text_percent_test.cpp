#include "cohort/base/text/text.h"

#include <doctest/doctest.h>

namespace cohort {

TEST_CASE("percent: a decimal place below ten") {
  CHECK(percent(0) == "0 %");
  CHECK(percent(0.0421) == "4.2 %");
  CHECK(percent(0.0994) == "9.9 %");
  CHECK(percent(0.09951) == "10 %");
  CHECK(percent(1.0 / 3) == "33 %");
  CHECK(percent(-0.0421) == "-4.2 %");
}

}  // namespace cohort
