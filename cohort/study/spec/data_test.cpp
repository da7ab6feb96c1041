#include "cohort/study/spec/data.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/base/fail.h"

using namespace cohort;
using namespace cohort::study;

TEST_CASE("study data: names of metrics and statuses are read back") {
  CHECK(std::string(name_of(kValError)) == "val_error");
  CHECK(std::string(name_of(kTestPrecision)) == "test_precision");
  for (const auto status : {TrialStatus::kComplete, TrialStatus::kCensored, TrialStatus::kInfeasible, TrialStatus::kIncomplete})
    CHECK(parse_trial_status(name_of(status)) == status);
  CHECK(parse_trial_status("Complete") == TrialStatus::kComplete);
  CHECK_THROWS_WITH_AS(parse_trial_status("DONE"), "'DONE' is not a trial status; expected one of: COMPLETE CENSORED INFEASIBLE INCOMPLETE",
                       Error);
}

TEST_CASE("study data: goals are written and read back, to the bit") {
  CHECK(GoalSpec{kValError, 0.12}.text() == "val_error<0.12");
  CHECK(GoalSpec{kValPrecision, 0.31}.text() == "val_precision>0.31");
  for (int metric = 0; metric < kNumMetrics; ++metric)
    for (const double value : {0.1 + 0.2, 1.0 / 3, 1e-17, 0.0, 1.0}) {
      const GoalSpec goal{static_cast<Metric>(metric), value};
      const GoalSpec read = parse_goal_spec(goal.text());
      CHECK(read.metric == goal.metric);
      CHECK(read.value == goal.value);
    }
  CHECK(parse_goal_spec(" val_loss < 3.9 ").value == 3.9);
}

TEST_CASE("study data: a goal that is none is refused with what it may be") {
  CHECK_THROWS_WITH_AS(parse_goal_spec("0.12"),
                       "goal '0.12' is not METRIC<VALUE or METRIC>VALUE, such as val_error<0.12 or val_precision>0.31", Error);
  CHECK_THROWS_WITH_AS(parse_goal_spec("val_eror<0.12"),
                       "goal 'val_eror<0.12': unknown metric 'val_eror' (did you mean 'val_error'?); metrics: train_loss train_error "
                       "train_precision val_loss val_error val_precision test_loss test_error test_precision",
                       Error);
  CHECK_THROWS_WITH_AS(parse_goal_spec("val_error>0.12"), "goal 'val_error>0.12': lower is better for val_error: write val_error<0.12",
                       Error);
  CHECK_THROWS_WITH_AS(parse_goal_spec("val_precision<0.3"),
                       "goal 'val_precision<0.3': higher is better for val_precision: write val_precision>0.3", Error);
  CHECK_THROWS_AS(parse_goal_spec("val_error<"), Error);
  CHECK_THROWS_AS(parse_goal_spec("val_error<nan"), Error);
  CHECK_THROWS_AS(parse_goal_spec("val_error<12"), Error);
  CHECK(parse_goal_spec("val_loss<12").value == 12);
}

TEST_CASE("study data: a goal is reached strictly, and never by what was not measured") {
  Measurement measurement;
  const GoalSpec error{kValError, 0.12}, precision{kValPrecision, 0.3};
  CHECK_FALSE(error.reached(measurement));
  CHECK_FALSE(precision.reached(measurement));
  measurement.values[kValError] = 0.12;
  measurement.values[kValPrecision] = 0.3;
  CHECK_FALSE(error.reached(measurement));
  CHECK_FALSE(precision.reached(measurement));
  measurement.values[kValError] = std::nextafter(0.12, 0);
  measurement.values[kValPrecision] = std::nextafter(0.3, 1);
  CHECK(error.reached(measurement));
  CHECK(precision.reached(measurement));
}
