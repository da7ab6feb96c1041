#pragma once
// The constants of a machine from steps that were measured on it (fit_machine.cpp). Torch-free.

#include <vector>

#include "cohort/plan/forecast/transformer_step.h"

namespace cohort {

struct MeasuredRun {
  TransformerRun run;
  double measured_seconds = 0;
};

struct FittedMachine {
  Machine machine;
  /// Of 100 further runs 90 should take from `low` to `high` times their forecast.
  double low = 0, high = 0;
};

/// `start` is what is believed before anything is measured: constants that the runs do not tell apart stay there, all of them where
/// there are fewer than ten runs. Error(kBadInput) where a measured time is not positive, or a run is none (transformer_step_seconds).
FittedMachine fit_machine(const std::vector<MeasuredRun>& runs, const Machine& start);

}  // namespace cohort
