#pragma once
// Models and batches that benchmarks time: those of bench/peers/workloads.py.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {

struct BenchWorkload {
  std::string model;  ///< For build_model().
  DataShape shape;
  int64_t batch = 0;  ///< Samples of one rank.
};

/// mlp-small, mlp, cnn, gpt.
const std::vector<std::string>& bench_workloads();
/// Error(kBadInput) for a name that is none of these.
BenchWorkload bench_workload(const std::string& name);
/// The batch that every step trains on; the same in every process.
BatchTensors bench_batch(const BenchWorkload& workload);

}  // namespace cohort
