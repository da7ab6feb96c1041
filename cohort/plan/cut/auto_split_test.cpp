#include "cohort/plan/cut/split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using Cut = std::vector<int>;

/// The largest sum of a stage, layer i taking `times[i]`.
StepSeconds largest_stage(const std::vector<double>& times, std::set<Cut>* met = nullptr) {
  return [times, met](const Cut& cut) {
    if (met) met->insert(cut);
    double largest = 0;
    for (size_t stage = 0; stage < cut.size(); ++stage) {
      const int end = stage + 1 < cut.size() ? cut[stage + 1] : static_cast<int>(times.size());
      double sum = 0;
      for (int layer = cut[stage]; layer < end; ++layer) sum += times[static_cast<size_t>(layer)];
      largest = std::max(largest, sum);
    }
    return largest;
  };
}

TEST_CASE("improve_split: few cuts are all tried") {
  std::set<Cut> met;
  CHECK(improve_split(6, {{0, 1, 2}}, largest_stage({1, 1, 1, 1, 1, 1}, &met)) == Cut{0, 2, 4});
  CHECK(met.size() == 10);  // 5 over 2.
  CHECK(improve_split(3, {{0, 1, 2}}, largest_stage({1, 5, 1})) == Cut{0, 1, 2});
  CHECK(improve_split(4, {{0}}, largest_stage({1, 1, 1, 1})) == Cut{0});
}

TEST_CASE("improve_split: the start stays where nothing is better, the first of equals") {
  CHECK(improve_split(4, {{0, 3}, {0, 1}}, [](const Cut&) { return 1.0; }) == Cut{0, 3});
  CHECK(improve_split(4, {{0, 3}}, [](const Cut&) { return INFINITY; }) == Cut{0, 3});
}

TEST_CASE("improve_split: many cuts are searched from the starts, and never end worse") {
  std::vector<double> times(60);
  for (size_t i = 0; i < times.size(); ++i) times[i] = 1 + static_cast<double>(i * 7 % 5);
  const StepSeconds seconds = largest_stage(times);
  Cut start, even;
  for (int stage = 0; stage < 8; ++stage) start.push_back(stage), even.push_back(stage * 60 / 8);
  const Cut found = improve_split(60, {start, even}, seconds);
  CHECK(found.size() == 8);
  CHECK(found.front() == 0);
  CHECK(std::is_sorted(found.begin(), found.end()));
  CHECK(seconds(found) <= seconds(even));
  CHECK(seconds(improve_split(60, {start}, seconds)) < seconds(start));
}

TEST_CASE("improve_split: what is no cut is refused") {
  for (const std::vector<Cut>& starts : {std::vector<Cut>{}, {{1, 2}}, {{0, 2, 2}}, {{0, 4}}, {{0, 2}, {0}}, {{}}})
    CHECK_THROWS_AS(improve_split(4, starts, [](const Cut&) { return 0.0; }), Error);
}

}  // namespace
}  // namespace cohort
