#include "cohort/bench/study.h"

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/trials/model_trial.h"

namespace cohort {
namespace {

/// The model and evaluation grid as a study's.
study::StudySpec bench_study_spec(const BenchStudyOptions& options) {
  study::StudySpec spec;
  spec.name = "bench";
  spec.model = options.model;
  spec.optimizer = options.optimizer;
  spec.evaluation_ratio = options.evaluation_ratio;
  return spec;
}

}  // namespace

std::shared_ptr<const TrialData> bench_study_data(const DataSet& data) { return std::make_shared<const TrialData>(data); }

TrialTime bench_trial(const BenchStudyOptions& options, std::shared_ptr<const TrialData> data) {
  const auto runner = make_model_runner(bench_study_spec(options), std::move(data), Group(), {.use_dense_chain = options.use_dense_chain});
  TrialTime time;
  const double before = process_cpu_seconds();
  const study::TrialOrder order{
      .batch_size = options.batch_size, .train_steps = options.steps, .parameters = {{"learning_rate", options.learning_rate}}, .seed = 1};
  const study::TrialOutcome outcome = runner->run(order, {[&](const study::Measurement& measurement) {
                                                    time.val_error = measurement.values[study::kValError];
                                                    return options.steps;
                                                  }});
  time.cpu_seconds = process_cpu_seconds() - before;
  time.seconds = outcome.seconds;
  if (outcome.status != study::TrialStatus::kComplete)
    fail(ErrorCode::kFailed, "bench study: the trial of batch ", options.batch_size, " did not complete; use another learning rate");
  return time;
}

}  // namespace cohort
