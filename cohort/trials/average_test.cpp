// Trials that are evaluated with the average of their weights.
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/trials/model_trial.h"
#include "cohort/trials/trial_data.h"
#include "cohort/trials/trial_step.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_trials.h"

namespace cohort {
namespace {

const char *const kFc = "fc:hidden=10,layers=2", *const kCnn = "cnn:conv1=3,conv2=4,hidden=8";

study::TrialOrder averaged(double decay) {
  study::TrialOrder order = tiny_order(0.1);
  order.parameters["average_decay"] = decay;
  return order;
}

/// The same from the weights of each step, one array after the other.
std::vector<double> losses_of_averages(const study::StudySpec& spec, const study::TrialOrder& order, double decay) {
  const TrialData data(data_of(spec), trial_data_options(spec));
  Group alone;
  TrialStep step(data, alone, {});
  study::Parameters plain = order.parameters;
  plain.erase("average_decay");
  step.begin(build_trial_model(spec, data.train.shape(), order.seed), trial_schedule(spec, plain, order.train_steps), order.batch_size,
             order.seed);
  const at::Tensor weights = step.weights().weights();
  at::Tensor average = weights.to(at::kDouble);
  std::vector<double> losses;
  for (int64_t number = 0;; ++number) {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor kept = weights.clone();
      weights.copy_(average);
      losses.push_back(evaluate_trial(step.model(), nullptr, data.validation, data.validation.num_samples(), alone).loss);
      weights.copy_(kept);
    }
    if (number == order.train_steps) return losses;
    step.compute(number, false);
    step.update(number);
    average = decay * average + (1 - decay) * weights.to(at::kDouble);
  }
}

TEST_CASE("a trial is evaluated with the average of the weights of all its steps, and trains as without it") {
  for (const char* const model : {kFc, kCnn})
    for (const char* const optimizer : {"sgd", "nesterov", "adam"}) {
      const study::StudySpec spec = tiny_spec(model, optimizer);
      const auto runner = make_model_runner(spec, data_of(spec), Group());
      const std::vector<double> plain = run_trial(*runner, averaged(0)).val_losses();
      CHECK(plain == run_trial(*runner, tiny_order(0.1)).val_losses());
      for (const double decay : {0.5, 0.9}) {
        INFO(model, " ", optimizer, " ", decay);
        const std::vector<double> found = run_trial(*runner, averaged(decay)).val_losses();
        CHECK(largest_difference(found, losses_of_averages(spec, averaged(decay), decay)) < 2e-6);
        CHECK(largest_difference(found, plain) > 1e-4);
      }
    }
}

TEST_CASE("the average is in the snapshot, and the same for a team") {
  const TemporaryFolder folder;
  const study::StudySpec spec = tiny_spec(kCnn, "momentum");
  const DataSet data = data_of(spec);
  study::TrialOrder order = averaged(0.8);
  const std::vector<double> whole = run_trial(*make_model_runner(spec, data, Group()), order).val_losses();
  std::vector<double> together;
  run_thread_ranks(2, [&](Group& team) {
    const RecordedTrial heard = run_trial(*make_model_runner(spec, data, team), order);
    if (team.rank() == 0) together = heard.val_losses();
  });
  CHECK(largest_difference(together, whole) < 1e-5);
  order.snapshot = folder / "snapshot";
  int calls = 0;
  CHECK(run_trial(*make_model_runner(spec, data, Group(), {.stop = [&] { return ++calls == 5; }}), order).outcome.steps == 5);
  CHECK(run_trial(*make_model_runner(spec, data, Group()), order).val_losses() == whole);
}

}  // namespace
}  // namespace cohort
