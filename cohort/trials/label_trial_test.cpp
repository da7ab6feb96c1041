// Trials on data with labels: their loss, and the average precision that a goal may be of.

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/run/trainer.h"
#include "cohort/train/train_result.h"
#include "cohort/trials/trial_data.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_trials.h"

namespace cohort {
namespace {

study::StudySpec labels_spec() {
  study::StudySpec spec = tiny_spec("fc:hidden=10,layers=2", "momentum");
  spec.data = "synthetic:1x8x8,labels=4,samples=140,noise=0.5";
  spec.goals = {{study::kValPrecision, 0.9}};
  return spec;
}

study::TrialOrder labels_order(int64_t train_steps) {
  study::TrialOrder order = tiny_order(0.3, 16, train_steps);
  order.parameters["momentum"] = 0.9;
  return order;
}

TEST_CASE("labels: a trial gives the loss, error and precision of train") {
  const study::StudySpec spec = labels_spec();
  const study::TrialOrder order = labels_order(6);  // Within the first epoch: later ones begin anew in train.
  const RecordedTrial heard = run_trial(*make_model_runner(spec, data_of(spec), Group()), order);
  const TemporaryFolder folder;
  Config config;
  config.run = folder / "run";
  config.data = spec.data;
  config.model = spec.model;
  config.optimizer = spec.optimizer;
  config.lr = 0.3;
  config.global_batch = order.batch_size;
  config.steps = order.train_steps;
  config.seed = order.seed;
  config.quiet = true;
  config.threads = 1;
  const TrainResult result = train(config, data_of(spec), World());
  const auto& last = heard.measurements.back().values;
  CHECK(last[study::kValLoss] == doctest::Approx(result.val_loss).epsilon(1e-5));
  CHECK(last[study::kValError] == result.val_error);
  CHECK(last[study::kValPrecision] == doctest::Approx(result.val_precision).epsilon(1e-9));
  CHECK(last[study::kValPrecision] > heard.measurements.front().values[study::kValPrecision]);
  CHECK(std::isnan(last[study::kTrainPrecision]));
}

TEST_CASE("labels: a team finds the same precision; train and test samples have one where they are evaluated") {
  study::StudySpec spec = labels_spec();
  spec.evaluate_train = spec.evaluate_test = true;
  DataSet data = data_of(spec);
  data.test = data.validation;
  const study::TrialOrder order = labels_order(6);
  const RecordedTrial alone = run_trial(*make_model_runner(spec, data, Group()), order);
  for (const study::Measurement& one : alone.measurements) {
    CHECK(one.values[study::kTrainPrecision] > 0);
    const double test = one.values[study::kTestPrecision];
    CHECK((std::isnan(test) || test == one.values[study::kValPrecision]));
  }
  CHECK(alone.measurements[0].values[study::kTestPrecision] > 0);
  run_thread_ranks(2, [&](Group& team) {
    const RecordedTrial shared = run_trial(*make_model_runner(spec, data, team), order);
    if (team.rank() != 0) return;
    for (size_t i = 0; i < alone.measurements.size(); ++i) {
      const double own = shared.measurements[i].values[study::kValPrecision], one = alone.measurements[i].values[study::kValPrecision];
      if (!(std::abs(own - one) < 1e-3)) throw std::runtime_error(concat("step ", i, ": precision ", own, ", of one process ", one));
    }
  });
}

TEST_CASE("labels: the test split is looked at where the precision alone is better, and a higher one is") {
  study::StudySpec spec = labels_spec();
  spec.evaluate_test = true;
  DataSet data = data_of(spec);
  data.test = data.validation;
  const RecordedTrial heard = run_trial(*make_model_runner(spec, data, Group()), labels_order(20));
  double loss = INFINITY, error = INFINITY, precision = -INFINITY;
  int64_t by_precision_alone = 0;
  for (const study::Measurement& one : heard.measurements) {
    const bool better_before = one.values[study::kValLoss] < loss || one.values[study::kValError] < error;
    const bool more_precise = one.values[study::kValPrecision] > precision;
    CHECK(std::isnan(one.values[study::kTestLoss]) == !(better_before || more_precise));
    by_precision_alone += more_precise && !better_before;
    loss = std::fmin(loss, one.values[study::kValLoss]), error = std::fmin(error, one.values[study::kValError]);
    precision = std::fmax(precision, one.values[study::kValPrecision]);
  }
  CHECK(by_precision_alone < 20);
}

TEST_CASE("labels: what a study asks for and the data have not is refused") {
  study::StudySpec spec = labels_spec();
  const DataShape labels = data_of(spec).train->shape();
  CHECK(build_trial_model(spec, labels, 1)->loss_name() == "binary");
  spec.batches = {{.batch_size = 16, .num_trials = 1, .train_steps = 1, .space = {{.name = "label_smoothing"}}}};
  CHECK_THROWS_WITH_AS(build_trial_model(spec, labels, 1), doctest::Contains("has labels; leave it out"), Error);
  study::StudySpec classes = tiny_spec("fc:hidden=10");
  classes.goals = {{study::kValPrecision, 0.9}};
  CHECK_THROWS_WITH_AS(build_trial_model(classes, data_of(classes).train->shape(), 1),
                       doctest::Contains("goal val_precision>0.9: a precision is of labels (task=labels)"), Error);
}

}  // namespace
}  // namespace cohort
