#include "cohort/report/draw/curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cohort/base/random.h"
#include "cohort/base/statistics.h"

namespace cohort::report {
namespace {

Curve noise(size_t size, uint64_t seed) {
  Curve curve;
  for (size_t i = 0; i < size; ++i) curve.push_back({static_cast<double>(i), unit_interval(random_bits(seed, i))});
  return curve;
}

TEST_CASE("downsample: a bounded number of the curve's own points, in order, with ends and extremes") {
  for (const size_t size : {0u, 1u, 2u, 3u, 5u, 599u, 600u, 601u, 602u, 1000u, 12345u}) {
    Curve curve = noise(size, size);
    if (size > 100) curve[size / 3].y = 50, curve[size / 2].y = -50;
    const Curve thin = downsample(curve, 600);
    CHECK(thin.size() <= 600);
    if (size <= 600) CHECK(thin.size() == size);
    std::set<std::pair<double, double>> all;
    for (const Point& point : curve) all.insert({point.x, point.y});
    for (size_t i = 0; i < thin.size(); ++i) {
      CHECK(all.contains({thin[i].x, thin[i].y}));
      if (i > 0) CHECK(thin[i - 1].x < thin[i].x);
    }
    if (size == 0) continue;
    CHECK(thin.front().x == curve.front().x);
    CHECK(thin.back().x == curve.back().x);
    const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
    CHECK(std::max_element(thin.begin(), thin.end(), by_y)->y == std::max_element(curve.begin(), curve.end(), by_y)->y);
    CHECK(std::min_element(thin.begin(), thin.end(), by_y)->y == std::min_element(curve.begin(), curve.end(), by_y)->y);
  }
}

TEST_CASE("downsample: tiny bounds, and a long gap stays a gap") {
  CHECK(downsample(noise(100, 1), 1).size() <= 4);
  Curve curve = noise(5000, 2);
  for (size_t i = 2000; i < 3000; ++i) curve[i].y = std::nan("");
  const Curve thin = downsample(curve, 600);
  CHECK(std::any_of(thin.begin(), thin.end(), [](const Point& point) { return std::isnan(point.y) && point.x >= 2000 && point.x < 3000; }));
  for (const Point& point : thin) {
    if (point.x < 1980 || point.x > 3020) CHECK(std::isfinite(point.y));
  }
}

TEST_CASE("smooth: equals the sum that defines it, keeps a constant, has no lag") {
  Curve curve = noise(60, 3);
  curve[7].y = curve[8].y = curve[59].y = std::nan("");
  const double scale = 2.5;
  const Curve fast = smooth(curve, scale);
  for (size_t i = 0; i < curve.size(); ++i) {
    if (!std::isfinite(curve[i].y)) {
      CHECK(std::isnan(fast[i].y));
      continue;
    }
    double sum = 0, weight = 0;
    for (size_t j = 0; j < curve.size(); ++j) {
      if (!std::isfinite(curve[j].y)) continue;
      const double w = std::exp(-std::abs(static_cast<double>(i) - static_cast<double>(j)) / scale);
      sum += w * curve[j].y;
      weight += w;
    }
    CHECK(fast[i].y == doctest::Approx(sum / weight));
  }
  Curve constant(100, {0, 3.0}), line;
  for (const Point& point : smooth(constant, 10)) CHECK(point.y == doctest::Approx(3.0));
  for (int i = 0; i < 201; ++i) line.push_back({double(i), double(i)});
  CHECK(smooth(line, 5)[100].y == doctest::Approx(100.0));
  CHECK(smooth({}, 5).empty());
}

TEST_CASE("quantile and mean leave out what is not finite") {
  CHECK(quantile({5, 1, std::nan(""), 3, INFINITY}, 0.5) == 3);
  CHECK(quantile({5, 1, 3}, 0) == 1);
  CHECK(quantile({5, 1, 3}, 1) == 5);
  CHECK(quantile({5, 1}, 0.25) == 2);
  CHECK(std::isnan(quantile({std::nan("")}, 0.5)));
  CHECK(mean({1, 2, std::nan(""), 6}) == 3);
  CHECK(std::isnan(mean({})));
}

}  // namespace
}  // namespace cohort::report
