#include "cohort/study/spec/hyperparameter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort::study {
namespace {

using Scale = Hyperparameter::Scale;
using Type = Hyperparameter::Type;

Hyperparameter range(Type type, Scale scale, double minimum, double maximum) { return {"x", type, scale, minimum, maximum, {}}; }

TEST_CASE("hyperparameter: the published direction of reverse-log") {
  const Hyperparameter momentum = range(Type::kDouble, Scale::kReverseLog, 0.9, 0.9999);
  CHECK(value_at(momentum, 0) == doctest::Approx(0.9999).epsilon(1e-12));
  CHECK(value_at(momentum, 0.5) == doctest::Approx(0.99684).epsilon(1e-5));
  CHECK(1 - value_at(momentum, 0.5) == doctest::Approx(std::sqrt(0.1 * 0.0001)).epsilon(1e-9));
  CHECK(value_at(momentum, 1) == doctest::Approx(0.9).epsilon(1e-12));
}

TEST_CASE("hyperparameter: linear and log scales rise") {
  const Hyperparameter linear = range(Type::kDouble, Scale::kLinear, -1, 3), log = range(Type::kDouble, Scale::kLog, 1e-4, 10);
  CHECK(value_at(linear, 0) == -1);
  CHECK(value_at(linear, 0.25) == 0);
  CHECK(value_at(linear, 1) == 3);
  CHECK(value_at(log, 0.2) == doctest::Approx(1e-3));
  CHECK(value_at(log, 0.8) == doctest::Approx(1));
}

TEST_CASE("hyperparameter: values stay inside, and units come back") {
  const Hyperparameter spaces[] = {range(Type::kDouble, Scale::kLinear, -1e-3, 1e9), range(Type::kDouble, Scale::kLog, 1e-300, 3.2),
                                   range(Type::kDouble, Scale::kReverseLog, 0, 1 - 1e-15)};
  for (const Hyperparameter& space : spaces) {
    for (int i = 0; i <= 1000; ++i) {
      const double unit = i / 1000.0, value = value_at(space, unit);
      REQUIRE(value >= space.minimum);
      REQUIRE(value <= space.maximum);
      REQUIRE(std::abs(unit_of(space, value) - unit) < 2e-3);  // 1 - 1e-15 has few digits left.
    }
    CHECK(unit_of(space, space.scale == Scale::kReverseLog ? space.maximum : space.minimum) == 0);
    CHECK(unit_of(space, space.scale == Scale::kReverseLog ? space.minimum : space.maximum) == 1);
  }
  const Hyperparameter log = range(Type::kDouble, Scale::kLog, 0.1, 1);
  CHECK(unit_of(log, -5) == 0);
  CHECK(unit_of(log, 7) == 1);
}

TEST_CASE("hyperparameter: integers and choices have equal cells whose middle comes back") {
  const Hyperparameter integer = range(Type::kInteger, Scale::kLinear, 3, 7);
  const Hyperparameter choice{"x", Type::kDiscrete, Scale::kLinear, 0, 0, {0.1, 0, 0.01, -3, 8}};
  for (const Hyperparameter& space : {integer, choice}) {
    std::map<double, int> counts;
    for (int i = 0; i < 5000; ++i) ++counts[value_at(space, (i + 0.5) / 5000)];
    CHECK(counts.size() == 5);
    for (const auto& [value, count] : counts) {
      CHECK(count == 1000);
      const double unit = unit_of(space, value);
      CHECK(std::abs(std::fmod(unit * 5, 1.0) - 0.5) < 1e-9);
      CHECK(value_at(space, unit) == value);
    }
  }
  CHECK(value_at(integer, 1) == 7);
  CHECK(value_at(choice, 1) == 8);
  CHECK(value_at(choice, 0) == 0.1);
  const Hyperparameter steps = range(Type::kInteger, Scale::kLog, 1, 1000);
  for (const double value : {1.0, 2.0, 31.0, 1000.0}) CHECK(value_at(steps, unit_of(steps, value)) == value);
  CHECK(value_at(steps, 0.5) == doctest::Approx(std::sqrt(0.5 * 1000.5)).epsilon(0.03));
}

TEST_CASE("hyperparameter: one value is a space too") {
  const Hyperparameter fixed{"x", Type::kDiscrete, Scale::kLinear, 0, 0, {0.9}}, point = range(Type::kDouble, Scale::kLog, 0.5, 0.5);
  CHECK(value_at(fixed, 0.7) == 0.9);
  CHECK(unit_of(fixed, 0.9) == 0.5);
  CHECK(value_at(point, 0.3) == 0.5);
  CHECK(unit_of(point, 0.5) == 0.5);
}

TEST_CASE("hyperparameter: points by name") {
  const SearchSpace space = {range(Type::kDouble, Scale::kLinear, 0, 2), {"y", Type::kDiscrete, Scale::kLinear, 0, 0, {4, 5}}};
  CHECK(point_at(space, {0.5, 0.9}) == Parameters{{"x", 1}, {"y", 5}});
  CHECK_THROWS_AS(point_at(space, {0.5}), Error);
}

TEST_CASE("hyperparameter: spaces that are none are refused by name") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const Hyperparameter& space, const std::string& text) {
    try {
      check_hyperparameter(space);
    } catch (const Error& error) {
      CHECK_MESSAGE(std::string(error.what()).starts_with("x: "), error.what());
      CHECK_MESSAGE(std::string(error.what()).find(text) != std::string::npos, error.what());
      return error.code() == ErrorCode::kBadInput;
    }
    return false;
  };
  CHECK(refused(range(Type::kDouble, Scale::kLinear, 2, 1), "min 2 is above max 1"));
  CHECK(refused(range(Type::kDouble, Scale::kLinear, 0, infinity), "finite"));
  CHECK(refused(range(Type::kDouble, Scale::kLinear, nan, 1), "finite"));
  CHECK(refused(range(Type::kDouble, Scale::kLog, 0, 1), "log scale"));
  CHECK(refused(range(Type::kInteger, Scale::kLog, 0, 5), "log scale"));
  CHECK(refused(range(Type::kDouble, Scale::kReverseLog, 0.9, 1), "reverse-log scale"));
  CHECK(refused(range(Type::kInteger, Scale::kLinear, 0.5, 5), "integer"));
  CHECK(refused(range(Type::kInteger, Scale::kLinear, 0, 1e300), "integer"));
  CHECK(refused({"x", Type::kDiscrete, Scale::kLinear, 0, 0, {}}, "no values"));
  CHECK(refused({"x", Type::kDiscrete, Scale::kLinear, 0, 0, {1, nan}}, "not finite"));
  CHECK_NOTHROW(check_hyperparameter(range(Type::kInteger, Scale::kLog, 1, 1)));
}

TEST_CASE("hyperparameter: names") {
  CHECK(std::string(name_of(Type::kDouble)) == "double");
  CHECK(std::string(name_of(Type::kInteger)) == "integer");
  CHECK(std::string(name_of(Type::kDiscrete)) == "discrete");
  CHECK(std::string(name_of(Scale::kLinear)) == "linear");
  CHECK(std::string(name_of(Scale::kLog)) == "log");
  CHECK(std::string(name_of(Scale::kReverseLog)) == "reverse-log");
}

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
