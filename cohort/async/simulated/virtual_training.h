#pragma once
// A training under the virtual clock (--virtual). Model, data, checkpoints, metrics, evaluation, goal and report are those of a real one.

#include <memory>

#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// One thread.
class VirtualTraining {
 public:
  virtual ~VirtualTraining() = default;
  virtual TrainResult train(RunSaver& saver, RunReporter& reporter) = 0;
};

/// Call before the RunSaver is constructed, whose state the training provides from then on. `run`, of a world of one rank, must outlive it.
/// Measures the computing time if it is not given, and writes it into run.config. Error(kBadInput) if a worker would have no samples.
std::unique_ptr<VirtualTraining> make_virtual_training(RunSetup& run);

}  // namespace cohort
