#include "cohort/data/split.h"

#include <doctest/doctest.h>

#include "cohort/data/test_files.h"
#include "cohort/testing/text.h"

using namespace cohort;
using namespace cohort::testing;

TEST_CASE("split: how many samples are for validation") {
  const auto of = [](int64_t samples, int64_t wanted = 0) {
    return num_validation_samples("data", samples, {.validation_samples = wanted});
  };
  CHECK(of(60000) == 5000);
  CHECK(of(55000) == 5000);
  CHECK(of(54999) == 5499);
  CHECK(of(50000) == 5000);
  CHECK(of(10000) == 1000);
  CHECK(of(19) == 1);
  CHECK(of(9) == 1);
  CHECK(of(2) == 1);
  CHECK(of(100, 99) == 99);
  CHECK(of(100, 1) == 1);
  CHECK(mentions(error_of([&] { of(1); }), "expected at least 2 samples"));
  CHECK(mentions(error_of([&] { of(100, 100); }), "data has 100 samples: expected at most 99 for validation, found 100"));
  CHECK(mentions(error_of([&] { of(100, -1); }), "expected at least 0, found -1"));
}
