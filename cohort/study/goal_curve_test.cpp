#include "cohort/study/goal_curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/store/store.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

StepsToResult row(int64_t batch_size, int64_t steps, std::optional<double> low = {}, std::optional<double> high = {}) {
  return {.batch_size = batch_size, .steps = steps, .low = low, .high = high};
}

std::vector<int64_t> sizes_of(const std::vector<GoalSteps>& points) {
  std::vector<int64_t> sizes;
  for (const GoalSteps& point : points) sizes.push_back(point.batch_size);
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

/// A plan of data parallelism that takes 100 steps.
GoalRow planned_row(int workers, double step_seconds) {
  GoalRow out{.num_workers = workers, .plan = RankedPlan()};
  out.plan->candidate.layout.dp = workers;
  out.plan->global_batch = 32;
  StepForecast& forecast = out.plan->forecast;
  forecast.step_seconds = step_seconds, forecast.low_seconds = 0.9 * step_seconds, forecast.high_seconds = 1.2 * step_seconds;
  out.plan->objective = 100 * step_seconds, out.plan->low = 90 * step_seconds, out.plan->high = 120 * step_seconds;
  return out;
}

bool says(const TimeToGoal& goal, const std::string& words) {
  const std::vector<std::string> all = goal_sentences(ModelProfile(), goal);
  return std::any_of(all.begin(), all.end(), [&](const std::string& one) { return one.find(words) != std::string::npos; });
}

TEST_CASE("worth of plans: the knee is where a doubling saves less than a tenth of the time") {
  const GoalCurve curve = goal_curve("runs/s", "val_error<0.1", {{.batch_size = 8, .steps = 400}, {.batch_size = 32, .steps = 100}});
  TimeToGoal goal;
  goal.rows = {planned_row(1, 0.8), planned_row(2, 0.5), planned_row(4, 0.4), planned_row(8, 0.37), planned_row(16, 0.36)};
  goal.chosen = *goal.rows.back().plan;
  add_worth(curve, goal);
  CHECK(goal.num_worth_having == 4);
  CHECK(goal.rows[2].speed_up == doctest::Approx(2));
  CHECK(goal.goal == "val_error<0.1");
  CHECK(says(goal,
             "more workers than 4 are not worth having: each doubling above saves less than 10 % of the time (16 workers are there 10 % "
             "sooner and cost 3.6 times the worker-hours)"));
  CHECK(says(goal,
             "batch size 32 on 16 workers, dp=16: 100 steps x 360.0 ms = 36.0 s to val_error<0.1 (32.4 s to 43.2 s), 0.16 worker-hours"));
  const Json json = to_json(ModelProfile(), goal);
  CHECK(json["num_worth_having"] == 4);
  CHECK(json["rows"][2]["worth_having"] == true);
  CHECK(json["rows"][3]["worth_having"] == false);

  goal.rows.resize(3), goal.chosen = *goal.rows.back().plan;
  add_worth(curve, goal);
  CHECK(says(goal, "all 4 workers are worth having"));
  goal.rows.insert(goal.rows.begin(), GoalRow{.num_workers = 1, .plan = {}});  // One is too few to hold it.
  goal.rows.erase(goal.rows.begin() + 1);
  add_worth(curve, goal);
  CHECK(goal.rows[0].speed_up == 0);
  CHECK(goal.rows[1].speed_up == 1);
  CHECK(goal.num_worth_having == 4);
}

TEST_CASE("worth of plans: more workers that no plan uses") {
  const GoalCurve curve = goal_curve("runs/s", "val_error<0.1", {{.batch_size = 32, .steps = 100}});
  TimeToGoal goal;
  goal.rows = {planned_row(1, 0.8), planned_row(2, 0.5), planned_row(4, 0.5)};
  goal.rows[2].plan = goal.rows[1].plan;
  goal.chosen = *goal.rows[1].plan;
  add_worth(curve, goal);
  CHECK(goal.num_worth_having == 2);
  CHECK(says(goal, "more workers than 2 are not worth having: no plan with more is faster"));
}

}  // namespace

}  // namespace cohort::study
