#include "cohort/report/draw/axis.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cohort/base/random.h"

namespace cohort::report {
namespace {

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> out;
  for (const Tick& tick : axis.ticks) out.push_back(tick.label);
  return out;
}

using Labels = std::vector<std::string>;

TEST_CASE("linear axis: known ends and labels") {
  CHECK(labels(linear_axis(0, 2.3, 6)) == Labels{"0.0", "0.5", "1.0", "1.5", "2.0", "2.5"});
  CHECK(labels(linear_axis(0, 6000, 4)) == Labels{"0", "2,000", "4,000", "6,000"});
  CHECK(labels(linear_axis(0, 0.05, 4)) == Labels{"0.00", "0.02", "0.04", "0.06"});
  CHECK(labels(linear_axis(-1, 1, 4)) == Labels{"-1.0", "-0.5", "0.0", "0.5", "1.0"});
  CHECK(labels(linear_axis(0.7, 0.7, 6)).size() >= 3);
}

TEST_CASE("linear axis: holds its range, few distinct labels, ticks inside, for ranges of any size") {
  for (uint64_t i = 0; i < 2000; ++i) {
    const double low = (unit_interval(random_bits(1, i, 0)) - 0.5) * std::pow(10, 40 * (unit_interval(random_bits(1, i, 1)) - 0.5));
    const double high = low + std::abs(low) * std::pow(10, 8 * (unit_interval(random_bits(1, i, 2)) - 0.9));
    const Axis axis = linear_axis(low, high, 5);
    CAPTURE(low);
    CAPTURE(high);
    REQUIRE(axis.low < axis.high);
    CHECK(axis.fraction(low) >= -1e-6);
    CHECK(axis.fraction(high) <= 1 + 1e-6);
    CHECK(axis.ticks.size() >= 2);
    CHECK(axis.ticks.size() <= 8);
    for (const Tick& tick : axis.ticks) {
      CHECK(axis.fraction(tick.value) >= -1e-6);
      CHECK(axis.fraction(tick.value) <= 1 + 1e-6);
    }
  }
}

TEST_CASE("axes: extreme values give finite places") {
  for (const double size : {1e308, 1e-308, 5e-324, 1.0}) {
    for (const auto& axis :
         {linear_axis(-size, size, 5), linear_axis(0, size, 5), logarithmic_axis(size, size), logarithmic_axis(1e-308, size)}) {
      CHECK(std::isfinite(axis.fraction(size)));
      CHECK(std::isfinite(axis.high - axis.low));
      CHECK(axis.low < axis.high);
      CHECK(axis.ticks.size() <= 120);
    }
  }
}

TEST_CASE("exact axis: the ends stay, steps are whole numbers, minor ticks alternate where there are many") {
  const Axis axis = exact_axis(0, 1720, 8);
  CHECK(axis.high == 1720);
  CHECK(labels(axis) == Labels{"0", "500", "1,000", "1,500"});
  const Axis many = exact_axis(0, 6000, 8);
  REQUIRE(many.ticks.size() == 7);
  for (size_t i = 0; i < many.ticks.size(); ++i) CHECK(many.ticks[i].minor == (i % 2 == 1));
  CHECK(labels(exact_axis(0, 1, 6)) == Labels{"0", "1"});
  CHECK(labels(exact_axis(0, 3, 8)) == Labels{"0", "1", "2", "3"});
}

TEST_CASE("logarithmic axis: ends at 1, 2 or 5 times a power of ten") {
  CHECK(labels(logarithmic_axis(0.3, 40)) == Labels{"0.2", "0.5", "1", "2", "5", "10", "20", "50"});
  const Axis axis = logarithmic_axis(0.001, 1000);
  CHECK(labels(axis) == Labels{"0.001", "0.01", "0.1", "1", "10", "100", "1,000"});
  CHECK(axis.fraction(1) == doctest::Approx(0.5));
  CHECK(axis.fraction(0.001) == doctest::Approx(0));
  CHECK(axis.fraction(0) == -1);
  CHECK(axis.fraction(-3) == -1);
  CHECK(logarithmic_axis(1e-200, 1e200).ticks.size() <= 10);
}

TEST_CASE("log2 axis: ticks are powers of two inside of the ends") {
  const Axis axis = log2_axis(3, 5000, 6);
  CHECK(axis.low == 3);
  CHECK(axis.high == 5000);
  REQUIRE(axis.ticks.size() >= 3);
  for (const Tick& tick : axis.ticks) {
    CHECK(std::exp2(std::round(std::log2(tick.value))) == tick.value);
    CHECK(tick.value >= 3 * 0.97);
    CHECK(tick.value <= 5000 * 1.03);
  }
  CHECK(log2_axis(1.0 / 64, 1, 10).ticks.front().label == "1/64");
  CHECK(log2_axis(1 << 20, 1 << 22, 6).ticks.front().label == "2^20");
  CHECK_FALSE(log2_axis(7, 7, 6).ticks.empty());
  CHECK(log2_axis(0, 1e300, 6).ticks.size() < 20);
}

}  // namespace
}  // namespace cohort::report
