#pragma once
// Seconds of one data-parallel training step beside what it cannot be below: the same step without any exchange.

#include <string>

#include "cohort/parallel/make_strategy.h"
#include "cohort/train/model/precision.h"

namespace cohort {

struct StepTimes {
  double step_seconds = 0;        ///< Median of rank 0's steps with `num_ranks` data-parallel ranks.
  double floor_seconds = 0;       ///< The same ranks at the same time, each alone with its own optimizer.
  double one_worker_seconds = 0;  ///< Rank 0 alone while the others wait idle: one worker on this machine.
  double exposed_seconds = 0;     ///< Median of the time that a step waited for the exchange.
  char advice[400] = {};  ///< Whether compressing gradients would pay; "" for layouts that do not compress. (Plain memory: it is shared.)
};

struct BenchStepOptions {
  std::string workload = "mlp";  ///< See bench_workload.h.
  StrategyOptions strategy;
  std::string backend = "auto";
  Precision precision = Precision::kFp32;
  int num_ranks = 2;
  int steps = 30;  ///< Of each kind; blocks of five alternate.
};

/// Forks its ranks; the calling process must have one thread. Error when a rank fails.
StepTimes bench_step(const BenchStepOptions& options);

}  // namespace cohort
