#pragma once
// A training under the virtual clock (--virtual): the loop beside that of trainer.cpp. Model, data, checkpoints, metrics, evaluation, goal
// and report are the same.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/job/sync_mode.h"
#include "cohort/train/run/run_evaluator.h"
#include "cohort/train/run/run_reporter.h"
#include "cohort/train/run/run_saver.h"
#include "cohort/train/run/run_setup.h"
#include "cohort/train/virtual_time/step_rounds.h"
#include "cohort/train/virtual_time/virtual_workers.h"

namespace cohort {

/// One thread; `run`, of a world of one rank, must outlive it.
class VirtualTraining {
 public:
  /// Before the RunSaver: what it saves and loads is asked of this object from now on. Where computing time is not given it is measured,
  /// and written into run.config. Error(kBadInput) where a worker would have no samples.
  explicit VirtualTraining(RunSetup& run);

  TrainResult train(RunSaver& saver, RunReporter& reporter);

 private:
  /// What happened since the last step that was reported.
  struct Window {
    double loss = 0, weight = 0;  // Sums over its pushes.
    int64_t samples = 0;
    double gradient_norm = 0;                                 // Of the last.
    double began = 0, compute_seconds = 0, push_seconds = 0;  // Real seconds, as they stood at its beginning.
  };

  VirtualParts parts();
  double measured_compute_seconds();
  std::optional<AppliedPush> act() { return rounds_ ? rounds_->act() : workers_->act(); }
  void add(const AppliedPush& push);
  void finish_steps(int64_t from, int64_t to, RunSaver& saver, RunReporter& reporter, RunEvaluator& evaluator);
  StepResult step_result(int64_t step);
  void begin_window();
  void tell_beginning() const;
  void tell_end(RunReporter& reporter) const;

  std::string key() const;
  std::vector<FlatPiece> saved_pieces();
  std::vector<FlatPiece> loaded_pieces();
  void after_loading();

  RunSetup& run_;
  VirtualSpec spec_;
  SyncMode sync_;
  TicketOptions ticket_options_;
  Tickets tickets_;
  TicketWork ticket_work_;
  VirtualClock clock_;
  Accounts accounts_;
  std::unique_ptr<AsyncMode> mode_;
  std::unique_ptr<VirtualWorkers> workers_;  // The one or the other.
  std::unique_ptr<StepRounds> rounds_;
  std::string loaded_text_;  // Of the checkpoint that the run goes on from; empty where it has none of this training.
  bool goes_on_ = false;     // All workers are where they were.
  Window window_;
  TrainResult result_;
  bool ends_ = false;
};

}  // namespace cohort
