#pragma once
// What runs one trial: a model on data (trials/model_trial.h), or the noisy quadratic (noisy_quadratic.h). The study's runner
// knows no more.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

/// One trial to run, or to go on with.
struct TrialOrder {
  int64_t batch_size = 0, id = 0;
  int64_t train_steps = 0;  ///< Budget.
  Parameters parameters;
  uint64_t seed = 0;     ///< Of weights, data order and dropout.
  std::string snapshot;  ///< File to save the trial's state to now and then, and to go on from where it exists; empty: neither.
};

/// The runner's side of a running trial. Called on the trial's thread.
struct TrialWatch {
  /// After each evaluation, in rising steps (those that a snapshot holds are given again first). Returns the step up to which the trial is
  /// wanted: it stops at the first evaluation at or beyond it.
  std::function<int64_t(const Measurement&)> measured;
};

struct TrialOutcome {
  TrialStatus status =
      TrialStatus::kIncomplete;  ///< kComplete: the budget is used up; kCensored: `measured` asked to stop before; or kInfeasible.
  int64_t steps = 0;
  double seconds = 0;         ///< Wall clock of this call.
  double seconds_before = 0;  ///< Of the calls before whose work the snapshot held, times their teams' ranks. Known on the first rank.
};

/// One thread. A runner of a team of ranks (a batch divided over workers): all ranks of the team call run() with the same order, and
/// `watch` is asked on the first alone.
class TrialRunner {
 public:
  virtual ~TrialRunner() = default;
  /// Deterministic: the same order gives the same measurements, with or without snapshots between. Error(kFailed) where the trial cannot be
  /// run at all.
  virtual TrialOutcome run(const TrialOrder& order, const TrialWatch& watch) = 0;
  /// Seconds of one step and of one evaluation at this batch size, measured now; for forecasts.
  struct Cost {
    double step_seconds = 0, evaluation_seconds = 0;
  };
  virtual Cost measure(int64_t batch_size) = 0;
};

}  // namespace cohort::study
