#pragma once
// sync=step under the virtual clock: all workers compute their shares of a step from one version, and wait for the slowest.

#include "cohort/train/virtual_time/virtual_workers.h"

namespace cohort {

/// One thread. The mode must be a GradientServer: gradients are summed and applied as one push of the whole step.
class StepRounds {
 public:
  explicit StepRounds(VirtualParts parts);

  /// Once, unless a state is loaded.
  void begin();
  /// A whole step. Error(kFailed) for a loss that is not finite, and where no step is ever complete because workers die too soon.
  AppliedPush act();
  /// Where the job goes back to when a worker dies.
  void saved() { since_checkpoint_seconds_ = 0; }

  double compute_seconds() const { return compute_seconds_; }
  double push_seconds() const { return push_seconds_; }
  double since_checkpoint_seconds() const { return since_checkpoint_seconds_; }
  void set_since_checkpoint_seconds(double seconds) { since_checkpoint_seconds_ = seconds; }

 private:
  double exchange_seconds() const;
  void pass(double seconds);

  VirtualParts parts_;
  double since_checkpoint_seconds_ = 0;  // Of steps that a death would undo.
  double compute_seconds_ = 0, push_seconds_ = 0;
};

}  // namespace cohort
