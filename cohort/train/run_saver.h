#pragma once
// Saving a run into its folder, and going on from what was saved.

#include <cstdint>
#include <limits>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/record/fields.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/run_state.h"

namespace cohort {

// What the evaluations of a run have come to: the best step that was saved, and how many evaluations since were no better. Best is the
// lowest validation loss, which every model has; of two alike the earlier.

struct EvaluatedStep {
  int64_t step = -1;  ///< -1: none.
  double val_loss = std::numeric_limits<double>::infinity();
  double val_error = kUnknown;      ///< Unknown where the model has none,
  double val_precision = kUnknown;  ///< and where the data have no labels.
};

/// A value; every rank has its own, and the same.
class BestStep {
 public:
  /// Whether that is better than the best that was saved.
  bool add(const EvaluatedStep& evaluated);
  /// The checkpoint of `step` was saved: the best, where the last evaluation was of that step and better.
  void saved(int64_t step);

  const EvaluatedStep& best() const { return best_; }
  const EvaluatedStep& last() const { return last_; }
  /// Since the best.
  int64_t evaluations_since() const { return evaluations_since_; }

  Json state() const;
  void load(const Json& state);

 private:
  EvaluatedStep best_, last_;
  bool is_better_ = false;  ///< The last is than the best.
  int64_t evaluations_since_ = 0;
};

class RunReporter;

/// One thread; `run` must outlive it.
class RunSaver {
 public:
  /// Collective. Goes on from the newest checkpoint where `run` is to. Error(kBadInput) where there is none that fits, or it has done more
  /// steps than are asked for.
  explicit RunSaver(RunSetup& run);

  int64_t first_step() const { return first_step_; }  ///< Steps done before this run began.
  int64_t saved_step() const { return saved_step_; }  ///< Of the newest checkpoint; -1: none.
  double load_seconds() const { return load_seconds_; }
  /// Paths of the checkpoint that it goes on from, and of the newest.
  const std::string& loaded() const { return loaded_; }
  const std::string& saved() const { return saved_; }
  const BestStep& best() const { return best_; }
  /// Of a run that had come to its end before it was resumed: "goal", "patience" or "steps". "": there is something left to train.
  std::string reason_to_end() const;
  /// Of the model as it is now, before it is saved. Whether that is better than the best that was saved.
  bool evaluated(const EvaluatedStep& evaluated) { return best_.add(evaluated); }

  /// Collective, unless that step is saved already.
  ///
  /// A save that fails for want of room (or of anything else that the system refuses) loses nothing that was saved before. In the middle
  /// of a training one failure is a warning, since a disk is often full for a moment only and the next save may succeed; the second in a
  /// row ends the training, Error(kFailed), while its last checkpoint is not older than one save. The save at the end, with which all work
  /// since the one before would go, is tried for some seconds. All ranks see the same failure, so they agree without a message.
  ///
  /// A run's folder that has another name by now gets this checkpoint there, and the training ends, Error(kEnvironment), so that there are
  /// not two halves of it; likewise where it was removed.
  void save(int64_t step, bool is_last, RunReporter& reporter);

 private:
  void resume();
  void save_now(int64_t step, RunReporter& reporter);
  void save_where_it_is(int64_t step, RunReporter& reporter);

  RunSetup& run_;
  RunState state_;
  BestStep best_;
  int64_t first_step_ = 0, saved_step_ = -1;
  double load_seconds_ = 0;
  std::string loaded_, saved_;
  bool last_failed_ = false;
};

}  // namespace cohort
