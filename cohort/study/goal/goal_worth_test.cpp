#include "cohort/study/goal/goal_worth.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/text/json.h"

namespace cohort::study {
namespace {

/// A plan of data parallelism that takes 100 steps.
GoalRow row(int workers, double step_seconds) {
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
  goal.rows = {row(1, 0.8), row(2, 0.5), row(4, 0.4), row(8, 0.37), row(16, 0.36)};
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
  goal.rows = {row(1, 0.8), row(2, 0.5), row(4, 0.5)};
  goal.rows[2].plan = goal.rows[1].plan;
  goal.chosen = *goal.rows[1].plan;
  add_worth(curve, goal);
  CHECK(goal.num_worth_having == 2);
  CHECK(says(goal, "more workers than 2 are not worth having: no plan with more is faster"));
}

}  // namespace
}  // namespace cohort::study
