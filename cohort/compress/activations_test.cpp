#include "cohort/compress/activations.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/random.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

/// A bell around zero with deviation 1, and `outliers` values of 100.
Histogram bell(int outliers, double least = -100) {
  Histogram values({least, 100});
  std::vector<float> drawn;
  for (uint64_t i = 0; i < 20'000; ++i) {
    double sum = 0;  // Of twelve even numbers: deviation 1.
    for (uint64_t j = 0; j < 12; ++j) sum += static_cast<double>(random_bits(9, i, j) >> 11) * 0x1.0p-53;
    drawn.push_back(static_cast<float>(std::max(sum - 6, least)));
  }
  drawn.insert(drawn.end(), static_cast<size_t>(outliers), 100.0F);
  values.add(drawn);
  return values;
}

TEST_CASE("a histogram counts all that is a number") {
  Histogram values({-1, 3});
  const std::vector<float> drawn = {-1, 0, 3, 7, -9, NAN};
  values.add(drawn);
  CHECK(values.total() == 5);
  CHECK(values.counts().front() == 2);  // -1 and what lies below.
  CHECK(values.counts().back() == 2);   // 3 and what lies above.
  CHECK(Histogram({2, 5}).range().low == 0);
  CHECK(Histogram({-5, -2}).range().high == 0);
  CHECK(Histogram({0, 0}).width() > 0);
}

TEST_CASE("every method gives a range within what was seen, with zero in it") {
  for (const RangeMethod& method : range_methods())
    for (const Histogram& values : {bell(0), bell(1), bell(3, 0), Histogram({0, 0})}) {
      CAPTURE(method.name);
      Histogram filled = values;
      const std::vector<float> zeros(10);
      filled.add(zeros);
      const ValueRange range = method.choose(filled);
      CHECK(range.low <= 0);
      CHECK(range.high >= 0);
      CHECK(range.high > range.low);
      CHECK(range.low >= filled.range().low - 1e-9);
      CHECK(range.high <= filled.range().high + 1e-9);
    }
}

TEST_CASE("one outlier among 20,000 widens min-max and no other") {
  const Histogram values = bell(1);
  CHECK(find_range_method("min-max").choose(values).high == 100);
  const double inner = find_range_method("percentile").choose(values).high;
  CHECK(inner < 20);
  CHECK(inner > 2);
  // 100^2 of one value outweighs the rounding of 20,000; of numbers twice as many it does not.
  Histogram even({0, 100});
  std::vector<float> drawn;
  for (int i = 0; i < 100'000; ++i) drawn.push_back(static_cast<float>(i % 1000) * 0.03F);
  drawn.push_back(40);
  even.add(drawn);
  const double found = find_range_method("mse").choose(even).high;
  CHECK(found >= 29);
  CHECK(found <= 41);
}

TEST_CASE("the range of the least squared error has no neighbour with less") {
  const Histogram values = bell(0, 0);
  const auto error_of_range = [&](double high) {
    const double step = high / kActivationSteps;
    double sum = 0;
    for (size_t bin = 0; bin < Histogram::kNumBins; ++bin) {
      const double value = values.middle(bin);
      const double nearest = std::clamp(std::round(value / step), 0.0, 127.0) * step;
      sum += values.counts()[bin] * (value - nearest) * (value - nearest);
    }
    return sum;
  };
  const double chosen = find_range_method("mse").choose(values).high;
  CHECK(error_of_range(chosen) < 0.5 * error_of_range(100));
  CHECK(error_of_range(chosen) < error_of_range(chosen / 2));
  CHECK(error_of_range(chosen) < error_of_range(chosen * 4));
}

TEST_CASE("an unknown method is refused by name") {
  CHECK(find_range_method("mse").name == "mse");
  CHECK(error_of([] { find_range_method("percentil"); }).find("did you mean 'percentile'") != std::string::npos);
}

}  // namespace

}  // namespace cohort
