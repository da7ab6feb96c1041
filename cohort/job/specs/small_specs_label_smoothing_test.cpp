#include "cohort/job/specs/small_specs.h"

#include <doctest/doctest.h>

#include "tests/support/errors.h"

namespace cohort {
namespace {

TEST_CASE("label smoothing: over the others is over all with another number") {
  CHECK(label_smoothing_over_all(0.1, "all", 10) == 0.1);
  CHECK(label_smoothing_over_all(0, "others", 1) == 0);
  for (const int64_t classes : {2, 10, 1000})
    for (const double smoothing : {0.01, 0.1, 0.4}) {
      const double all = label_smoothing_over_all(smoothing, "others", classes), even = all / static_cast<double>(classes);
      CHECK(1 - all + even == doctest::Approx(1 - smoothing));
      CHECK(even == doctest::Approx(smoothing / static_cast<double>(classes - 1)));
    }
  CHECK(error_of([] { label_smoothing_over_all(0.6, "others", 2); }).find("the largest that makes sense is 0.5") != std::string::npos);
}

}  // namespace
}  // namespace cohort
