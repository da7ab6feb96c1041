#include "cohort/study/spec/halton.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort::study {
namespace {

std::vector<double> coordinate(const Halton& halton, size_t dimension, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(halton.point(i)[dimension]);
  return values;
}

/// Star discrepancy on a line, exactly: 1 / 2n + max |x_(i) - (i - 1/2) / n| (Niederreiter 1992, theorem 2.6).
double discrepancy(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - (static_cast<double>(i) + 0.5) / n));
  return worst + 0.5 / n;
}

/// Star discrepancy of points in a square, exactly: all boxes whose corner has coordinates of points (or 1), closed and open.
double discrepancy(const std::vector<double>& xs, const std::vector<double>& ys) {
  std::vector<double> right = xs, top = ys;
  right.push_back(1), top.push_back(1);
  const double n = static_cast<double>(xs.size());
  double worst = 0;
  for (const double x : right) {
    for (const double y : top) {
      int closed = 0, open = 0;
      for (size_t i = 0; i < xs.size(); ++i) {
        closed += xs[i] <= x && ys[i] <= y;
        open += xs[i] < x && ys[i] < y;
      }
      worst = std::max({worst, closed / n - x * y, x * y - open / n});
    }
  }
  return worst;
}

TEST_CASE("halton: lines are filled evenly, far better than by random numbers (0.085 at 100 points)") {
  double mean = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Halton halton(5, seed);
    for (size_t dimension = 0; dimension < 5; ++dimension) {
      const double found = discrepancy(coordinate(halton, dimension, 100));
      CHECK_MESSAGE(found < 0.045, "seed ", seed, " dimension ", dimension, ": ", found);
      mean += found / 40;
    }
  }
  CHECK(mean < 0.021);
}

TEST_CASE("halton: squares are filled evenly, in large bases too") {
  double mean = 0, mean_large = 0, mean_random = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Halton halton(9, seed);
    mean += discrepancy(coordinate(halton, 0, 100), coordinate(halton, 1, 100)) / 6;
    mean_large += discrepancy(coordinate(halton, 7, 100), coordinate(halton, 8, 100)) / 6;
    std::vector<double> xs, ys;
    for (int i = 0; i < 100; ++i)
      xs.push_back(unit_interval(random_bits(seed, i, 0))), ys.push_back(unit_interval(random_bits(seed, i, 1)));
    mean_random += discrepancy(xs, ys) / 6;
  }
  CHECK(mean < 0.055);
  CHECK(mean < mean_random / 2);
  CHECK(mean_large < 0.8 * mean_random);
}

TEST_CASE("halton: a point is a function of seed and index, and fewer dimensions are the first of more") {
  const Halton three(3, 7), same(3, 7), five(5, 7), other(3, 8);
  for (const int64_t index : {0, 1, 99, 1000000}) {
    const std::vector<double> point = three.point(index), longer = five.point(index);
    CHECK(point == same.point(index));
    CHECK(std::equal(point.begin(), point.end(), longer.begin()));
    CHECK(point != other.point(index));
  }
}

TEST_CASE("halton: points lie in the cube and differ in every coordinate") {
  const Halton halton(32, 3);
  std::vector<std::set<double>> seen(32);
  for (int64_t i = 0; i < 2000; ++i) {
    const std::vector<double> point = halton.point(i);
    for (size_t dimension = 0; dimension < 32; ++dimension) {
      REQUIRE(point[dimension] >= 0);
      REQUIRE(point[dimension] < 1);
      seen[dimension].insert(point[dimension]);
    }
  }
  for (const std::set<double>& values : seen) CHECK(values.size() == 2000);
}

TEST_CASE("halton: dimensions out of range are refused") {
  CHECK_THROWS_AS(Halton(0, 1), Error);
  CHECK_THROWS_AS(Halton(33, 1), Error);
  CHECK(Halton(32, 1).point(0).size() == 32);
}

}  // namespace
}  // namespace cohort::study
