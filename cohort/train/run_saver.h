#pragma once
// Saves a run into its folder, and resumes it.

#include <cstdint>
#include <limits>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/fields.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/run_state.h"

namespace cohort {

struct EvaluatedStep {
  int64_t step = -1;  ///< -1: none.
  double val_loss = std::numeric_limits<double>::infinity();
  double val_error = kUnknown;      ///< Unknown if the model has no error,
  double val_precision = kUnknown;  ///< and if the data have no labels.
};

/// The best saved step, by the lowest validation loss (the earlier of two equal ones), and the evaluations since that were not better. A
/// value, the same on every rank.
class BestStep {
 public:
  /// True if it is better than the best saved one.
  bool add(const EvaluatedStep& evaluated);
  /// The checkpoint of `step` was saved; it becomes the best if the last evaluation was of that step and better.
  void saved(int64_t step);

  const EvaluatedStep& best() const { return best_; }
  const EvaluatedStep& last() const { return last_; }
  int64_t evaluations_since() const { return evaluations_since_; }

  Json state() const;
  void load(const Json& state);

 private:
  EvaluatedStep best_, last_;
  bool is_better_ = false;  // The last evaluation, than the best.
  int64_t evaluations_since_ = 0;
};

class RunReporter;

/// One thread; `run` must outlive it.
class RunSaver {
 public:
  /// Collective. Loads the newest checkpoint if `run` is resumed. Error(kBadInput) where none fits, or it has more steps than the run.
  explicit RunSaver(RunSetup& run);

  int64_t first_step() const { return first_step_; }  ///< Steps done before this run began.
  int64_t saved_step() const { return saved_step_; }  ///< The step of the newest checkpoint; -1: none.
  double load_seconds() const { return load_seconds_; }
  /// Paths of the checkpoint that was loaded, and of the newest one.
  const std::string& loaded() const { return loaded_; }
  const std::string& saved() const { return saved_; }
  const BestStep& best() const { return best_; }
  /// Why a resumed run had already ended: "goal", "patience" or "steps"; "": it had not.
  std::string reason_to_end() const;
  /// Called before the evaluated model is saved. True if it is better than the best saved one.
  bool evaluated(const EvaluatedStep& evaluated) { return best_.add(evaluated); }

  /// Collective. Does nothing if that step is saved already.
  ///
  /// A save that fails, for a full disk say, keeps the checkpoints before it. During the training one failure is a warning, since the next
  /// save may succeed, and the second in a row is an Error(kFailed), while the last checkpoint is only one save old. The save at the end is
  /// tried for some seconds. All ranks see the same failure, so they agree without a message.
  ///
  /// If the run's folder was moved, this checkpoint is saved in the new place and the training ends with Error(kEnvironment), so that a run
  /// is not split over two folders. It also ends if the folder was removed.
  void save(int64_t step, bool is_last, RunReporter& reporter);

 private:
  void resume();
  void save_now(int64_t step, RunReporter& reporter);
  void check_not_moved(int64_t step, RunReporter& reporter);

  RunSetup& run_;
  RunState state_;
  BestStep best_;
  int64_t first_step_ = 0, saved_step_ = -1;
  double load_seconds_ = 0;
  std::string loaded_, saved_;
  bool last_failed_ = false;
};

}  // namespace cohort
