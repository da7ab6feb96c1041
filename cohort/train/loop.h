#pragma once
// The loop of a training whose ranks are in step, and what comes after a step, whichever loop made it: its line, evaluation, goal and
// checkpoint.

#include <cstdint>

#include "cohort/train/model/evaluate.h"
#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/step/training_step.h"
#include "cohort/train/train_options.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// Whether one of the steps after `from` up to `to` is a multiple of `every`; never for 0 and below.
bool passes_multiple(int64_t from, int64_t to, int64_t every);

/// Every rank has one and calls all of it alike. One thread; references must outlive it.
class AfterStep {
 public:
  AfterStep(RunSetup& run, RunSaver& saver, RunReporter& reporter);

  /// Collective. Steps after `from` up to that of `step` are over: more than one where the last push of an epoch weighed more than the
  /// epoch's last step. The run's model is that step's wherever something is due. Error(kFailed) where a loss is not finite.
  void finish(int64_t from, const StepResult& step);
  /// Collective, once no step is left to make: what nobody evaluated yet, and the test set.
  void evaluate_at_end();

  bool ends() const { return ends_; }  ///< Nothing is to be trained any more.
  TrainResult& result() { return result_; }

 private:
  Evaluation evaluated(const DataSource& source);
  void evaluate(int64_t step, bool last);
  void look_for_folder();
  bool save_is_due(int64_t from, int64_t to) const;
  bool goal_is_reached(int64_t step) const;
  bool patience_is_over(int64_t step) const;

  RunSetup& run_;
  RunSaver& saver_;
  RunReporter& reporter_;
  int64_t evaluated_step_ = -1;
  bool is_better_ = false;  ///< The last evaluation was than all that were saved.
  TrainResult result_;
  bool ends_ = false;
  double next_look_ = 0;  ///< For the run's folder, in steady_seconds().
};

// The loop of a training whose ranks are in step.

/// From the step that `saver` read to the end. Collective. Errors as train() of trainer.h has them.
TrainResult train_in_step(RunSetup& run, RunSaver& saver, RunReporter& reporter);

}  // namespace cohort
