#pragma once
// Models and batches that benchmarks time: those of bench/peers/workloads.py.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/precision.h"

namespace cohort {

struct BenchWorkload {
  std::string model;  ///< For build_model().
  DataShape shape;
  int64_t batch = 0;  ///< Samples of one rank.
};

/// mlp-small, mlp, cnn, gpt.
const std::vector<std::string>& bench_workloads();
/// Error(kBadInput) for an unknown name.
BenchWorkload bench_workload(const std::string& name);
/// The batch of every step, the same in every process.
BatchTensors bench_batch(const BenchWorkload& workload);

// Times a data-parallel training step beside its floor: the same step without any exchange.

struct StepTimes {
  double step_seconds = 0;        ///< Median of rank 0's steps with `num_ranks` data-parallel ranks.
  double floor_seconds = 0;       ///< The step of the same ranks at the same time without an exchange, each with its own optimizer.
  double one_worker_seconds = 0;  ///< Rank 0 alone while the others wait idle: one worker on this machine.
  double exposed_seconds = 0;     ///< Median of the time that a step waited for the exchange.
  char advice[400] = {};  ///< Whether compressing gradients would pay; "" for layouts that do not compress. (Plain memory: it is shared.)
};

struct BenchStepOptions {
  std::string workload = "mlp";  ///< See bench_workload().
  StrategyOptions strategy;
  std::string backend = "auto";
  Precision precision = Precision::kFp32;
  int num_ranks = 2;
  int steps = 30;  ///< Steps of each kind; blocks of five alternate.
};

/// Forks its ranks; the calling process must have one thread. Error when a rank fails.
StepTimes bench_step(const BenchStepOptions& options);

}  // namespace cohort
