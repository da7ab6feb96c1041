#pragma once
// The training loop of synchronous ranks, and the work after a step of any training loop: metrics, evaluation, goal and checkpoint.

#include <cstdint>

#include "cohort/train/model/evaluate.h"
#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/step/training_step.h"
#include "cohort/train/train_options.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// True if a step in (from, to] is a multiple of `every`; false for every <= 0.
bool passes_multiple(int64_t from, int64_t to, int64_t every);

/// Every rank has one and makes the same calls. One thread; references must outlive it.
class AfterStep {
 public:
  AfterStep(RunSetup& run, RunSaver& saver, RunReporter& reporter);

  /// Collective. Called when the steps in (from, step] are done, with the model of that step; asynchronous workers may do several steps at
  /// once. Error(kFailed) where a loss is not finite.
  void finish(int64_t from, const StepResult& step);
  /// Collective. Called after the last step: evaluates it if that was not done, and the test set.
  void evaluate_at_end();

  bool ends() const { return ends_; }  ///< No more steps are to be made.
  TrainResult& result() { return result_; }

 private:
  Evaluation evaluated(const DataSource& source);
  void evaluate(int64_t step, bool last);
  void check_folder();
  bool save_is_due(int64_t from, int64_t to) const;
  bool goal_is_reached(int64_t step) const;
  bool patience_is_over(int64_t step) const;

  RunSetup& run_;
  RunSaver& saver_;
  RunReporter& reporter_;
  int64_t evaluated_step_ = -1;
  bool is_better_ = false;  // The last evaluation is better than all saved ones.
  TrainResult result_;
  bool ends_ = false;
  double next_check_seconds_ = 0;  // When to check the run's folder, in steady_seconds().
};

/// Trains from the step that `saver` loaded to the end. Collective. Errors as train() of trainer.h.
TrainResult train_synchronously(RunSetup& run, RunSaver& saver, RunReporter& reporter);

}  // namespace cohort
