#include "cohort/study/goal/goal_curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/store/store.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

StepsToResult row(int64_t batch_size, int64_t steps, std::optional<double> low = {}, std::optional<double> high = {}) {
  return {.batch_size = batch_size, .steps = steps, .low = low, .high = high};
}

std::vector<int64_t> sizes_of(const std::vector<cohort::StepsPoint>& points) {
  std::vector<int64_t> sizes;
  for (const cohort::StepsPoint& point : points) sizes.push_back(point.batch_size);
  return sizes;
}

TEST_CASE("goal curve: no batch above the flat point is useful unless its steps fall beyond noise") {
  // Without intervals a fifth is what the regimes call flat.
  const GoalCurve plain = goal_curve("curve.csv", "", {row(16, 4000), row(64, 1050), row(256, 900), row(1024, 890)});
  CHECK(plain.flat_from == 64);
  CHECK(plain.left_out == std::vector<int64_t>{256, 1024});
  CHECK(sizes_of(plain.useful_points()) == std::vector<int64_t>{16, 64});
  CHECK(sizes_of(plain.all_points()) == std::vector<int64_t>{16, 64, 256, 1024});
  CHECK(plain.sentence() == "batches above 64 need no fewer steps beyond noise, so none is taken for speed (left out: 256, 1,024)");

  // 256 is proved to need fewer; 1024 might, and 2048 has no upper end.
  const GoalCurve measured = goal_curve("s", "val_error<0.1",
                                        {row(16, 4000, 4000, 4100), row(64, 1050, 1050, 1100), row(256, 900, 900, 1000),
                                         row(1024, 890, 890, 1060), row(2048, 880, 880, kInfinite)});
  CHECK(measured.flat_from == 64);
  CHECK(measured.left_out == std::vector<int64_t>{1024, 2048});
  CHECK(sizes_of(measured.useful_points()) == std::vector<int64_t>{16, 64, 256});
  CHECK(measured.useful_points().back().high == 1000);
}

TEST_CASE("goal curve: steps that fall to the end leave nothing out; rows come sorted and without those that did not reach the goal") {
  StepsToResult missed{.batch_size = 8};
  const GoalCurve curve = goal_curve("s", "", {row(64, 100), missed, row(16, 400), row(32, 200)});
  CHECK(!curve.flat_from);
  CHECK(curve.left_out.empty());
  CHECK(sizes_of(curve.useful_points()) == std::vector<int64_t>{16, 32, 64});
  CHECK(curve.sentence().find("still fall at the largest batch, 64") != std::string::npos);
  CHECK(goal_curve("s", "", {row(16, 400)}).sentence().empty());
  CHECK_THROWS_WITH_AS(goal_curve("s", "", {missed}), doctest::Contains("s: no batch size reached the goal"), Error);
}

TEST_CASE("goal curve: of a study's folder, from its report or from its store") {
  const StudyData study = made_up::make_study(100, 64, 2, 20, 1);
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(curve_of_study(folder.path()), doctest::Contains("holds no study"), Error);
  Store::create(folder.path(), study);
  const GoalCurve from_store = curve_of_study(folder.path());
  CHECK(from_store.goal == made_up::kGoal.text());
  CHECK(from_store.rows.size() == study.batches.size());
  REQUIRE(from_store.flat_from);
  CHECK(*from_store.flat_from >= 64);
  CHECK(*from_store.flat_from < 4096);
  Analysis analysis;
  analysis.goal = {kValError, 0.05};
  analysis.steps = {row(16, 100, 100, 120)};
  analysis.steps.front().trial_id = 0;
  write_steps_curve(folder.path() + "/steps_curve.csv", analysis);
  const GoalCurve from_report = curve_of_study(folder.path());
  CHECK(from_report.goal == "val_error<0.05");
  CHECK(from_report.rows.size() == 1);
  CHECK(from_report.source == folder.path());
  CHECK(read_goal_curve(folder.path() + "/steps_curve.csv").goal == "val_error<0.05");
}

}  // namespace
}  // namespace cohort::study
