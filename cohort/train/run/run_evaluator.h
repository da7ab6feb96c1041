#pragma once
// What comes after a step, whichever loop made it: evaluation, and whether a checkpoint is due or the goal reached.

#include <cstdint>

#include "cohort/train/run/run_reporter.h"
#include "cohort/train/run/run_setup.h"
#include "cohort/train/trainer.h"

namespace cohort {

/// Every rank has one and calls all of it alike. One thread; references must outlive it.
class RunEvaluator {
 public:
  RunEvaluator(RunSetup& run, RunReporter& reporter) : run_(run), reporter_(reporter) {}

  /// Collective. Into `result`, and into the run's lines. Error(kFailed) where the loss is not finite.
  void evaluate(int64_t step, bool last, TrainResult& result);
  /// Of the last evaluation; -1: there was none.
  int64_t evaluated_step() const { return evaluated_step_; }
  bool save_is_due(int64_t step) const;
  /// By an evaluation of this very step.
  bool goal_is_reached(int64_t step, const TrainResult& result) const;

 private:
  RunSetup& run_;
  RunReporter& reporter_;
  int64_t evaluated_step_ = -1;
};

}  // namespace cohort
