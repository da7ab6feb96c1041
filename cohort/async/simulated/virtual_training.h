#pragma once
// A training under the virtual clock (--virtual). Model, data, checkpoints, metrics, evaluation, goal and report are those of a real one.

#include <memory>
#include <string>
#include <vector>

#include "cohort/async/async_training.h"
#include "cohort/async/simulated/virtual_driver.h"
#include "cohort/async/ticket_work.h"
#include "cohort/train/loop.h"
#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// One thread; `run`, of a world of one rank, must outlive it.
class VirtualTraining {
 public:
  /// Construct before the RunSaver, whose state this object provides from then on. Measures the computing time if it is not given, and
  /// writes it into run.config. Error(kBadInput) if a worker would have no samples.
  explicit VirtualTraining(RunSetup& run);

  TrainResult train(RunSaver& saver, RunReporter& reporter);

 private:
  VirtualContext driver_context();
  double measured_compute_seconds();
  StepResult step_result(int64_t from, int64_t step) const;
  void begin_window();
  void log_beginning() const;
  void log_summary(int64_t steps, RunReporter& reporter) const;

  std::string key() const;
  std::vector<FlatPiece> saved_pieces();
  std::vector<FlatPiece> loaded_pieces();
  void after_loading();

  RunSetup& run_;
  VirtualSpec spec_;
  AsyncTraining async_;
  TicketWork ticket_work_;
  VirtualClock clock_;
  std::unique_ptr<VirtualDriver> driver_;
  double compute_seconds_before_ = 0, push_seconds_before_ = 0;  // Wall-clock seconds when the step began.
};

}  // namespace cohort
