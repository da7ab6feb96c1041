#pragma once
// sync=step under the virtual clock: all workers compute their shares of a step from one version, and wait for the slowest.

#include <optional>
#include <utility>
#include <vector>

#include "cohort/async/simulated/virtual_driver.h"

namespace cohort {

/// One thread. The mode must be a GradientServer: gradients are summed and applied as one push of the whole step.
class StepRounds : public VirtualDriver {
 public:
  explicit StepRounds(VirtualParts parts) : VirtualDriver(std::move(parts)) {}

  void begin() override;
  /// A whole step. Error(kFailed) also where no step is ever complete because workers die too soon.
  std::optional<AppliedPush> act() override;
  /// There the job goes back to when a worker dies.
  std::vector<FlatPiece> saved_pieces() override;

 private:
  void pass(double seconds);

  double since_checkpoint_seconds_ = 0;  // Of steps that a death would undo.
};

}  // namespace cohort
