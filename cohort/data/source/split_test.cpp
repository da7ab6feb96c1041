#include "cohort/data/source/split.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/data_files.h"
#include "tests/support/text.h"

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

TEST_CASE("split_by_seed: every sample is in one part, all are equally likely, and the seed decides") {
  const SplitSamples split = split_by_seed("x", 50, {.validation_samples = 20}, 9);
  CHECK(split.validation.size() == 20);
  std::vector<int64_t> all = split.train;
  all.insert(all.end(), split.validation.begin(), split.validation.end());
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < 50; ++i) CHECK(all[static_cast<size_t>(i)] == i);
  CHECK(std::is_sorted(split.train.begin(), split.train.end()));
  CHECK(split_by_seed("x", 50, {.validation_samples = 20}, 9).validation == split.validation);
  CHECK(split_by_seed("x", 50, {.validation_samples = 20}, 8).validation != split.validation);
  std::vector<int> times(10);
  for (uint64_t seed = 0; seed < 2000; ++seed)
    for (const int64_t sample : split_by_seed("x", 10, {.validation_samples = 3}, seed).validation) ++times[static_cast<size_t>(sample)];
  for (const int count : times) CHECK(std::abs(count - 600) < 100);  // Five deviations of a binomial.
}
