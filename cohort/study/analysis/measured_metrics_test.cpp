#include "cohort/study/analysis/measured_metrics.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/study/analysis/fits.h"

namespace cohort::study {
namespace {

/// One trial at each of two batch sizes; the second measures a test loss once.
StudyData loss_study() {
  StudyData study;
  for (const int64_t size : {8, 16}) {
    Trial trial{.status = TrialStatus::kComplete, .steps = 2};
    trial.measurements.resize(2);
    trial.measurements[0].values[kValLoss] = 1;
    trial.measurements[1].step = 2;
    if (size == 16) trial.measurements[1].values[kTestLoss] = 0.5;
    study.batches.push_back({.batch_size = size, .num_trials = 1, .train_steps = 2, .trials = {trial}});
  }
  return study;
}

TEST_CASE("measured metrics: a value at any evaluation of any trial is enough") {
  CHECK(measured_metrics(loss_study()) == std::vector<Metric>{kValLoss, kTestLoss});
  CHECK(measured_metrics({}).empty());
}

TEST_CASE("measured metrics: a goal on another metric is refused by name, also by the analysis") {
  const StudyData study = loss_study();
  const GoalSpec other{kValError, 0.1};
  CHECK(may_answer(study, {kTestLoss, 0.1}));
  CHECK_FALSE(may_answer(study, other));
  const char* sentence = "goal val_error<0.1: this study does not measure val_error; measured: val_loss, test_loss";
  CHECK_THROWS_WITH_AS(check_is_measured(study, other), sentence, Error);
  CHECK_THROWS_WITH_AS(analyse(study, other, {.num_resamples = 1}), sentence, Error);
}

TEST_CASE("measured metrics: a study that has measured nothing yet is not refused") {
  StudyData study = loss_study();
  for (BatchStudy& batch : study.batches) batch.trials.clear();
  CHECK(may_answer(study, {kValError, 0.1}));
  CHECK_NOTHROW(check_is_measured(study, {kValError, 0.1}));
}

}  // namespace
}  // namespace cohort::study
