#pragma once
// The interface of a study to what runs its trials: a model on data (trials/model_trial.h), or the noisy quadratic (noisy_quadratic.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

/// A trial to run or to resume.
struct TrialOrder {
  int64_t batch_size = 0, id = 0;
  int64_t train_steps = 0;  ///< Budget.
  Parameters parameters;
  uint64_t seed = 0;     ///< Seed of weights, data order and dropout.
  std::string snapshot;  ///< File to which the trial's state is saved periodically, and resumed from where it exists; may be empty.
};

/// Callbacks of a running trial, called on the trial's thread.
struct TrialWatch {
  /// Called after each evaluation, in increasing order of steps (first those of a resumed snapshot). Returns a step bound: the trial stops
  /// at the first evaluation at or beyond it.
  std::function<int64_t(const Measurement&)> measured;
};

struct TrialOutcome {
  /// kComplete: the budget is used up; kCensored: `measured` stopped it before; kInfeasible: it diverged; kIncomplete: it was interrupted.
  TrialStatus status = TrialStatus::kIncomplete;
  int64_t steps = 0;
  double seconds = 0;         ///< Wall clock of this call.
  double seconds_before = 0;  ///< Of earlier calls whose work the snapshot held, times the ranks of their teams. Set on the first rank.
};

/// Used by one thread. Where a team of ranks divides each batch, all its ranks call run() with the same order, and `watch` is called on the
/// first rank only.
class TrialRunner {
 public:
  virtual ~TrialRunner() = default;
  /// Deterministic: the same order gives the same measurements, also when resumed from snapshots. Error(kFailed) where the trial cannot be
  /// run.
  virtual TrialOutcome run(const TrialOrder& order, const TrialWatch& watch) = 0;
  /// Seconds of one step and of one evaluation at this batch size, measured now; for forecasts.
  struct Cost {
    double step_seconds = 0, evaluation_seconds = 0;
  };
  virtual Cost measure(int64_t batch_size) = 0;
};

}  // namespace cohort::study
