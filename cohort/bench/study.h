#pragma once
// Trials of a batch-size study, timed. No LibTorch.

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

struct TrialData;

struct BenchStudyOptions {
  std::string model = "fc:hidden=64,layers=3";
  std::string optimizer = "sgd";
  int64_t batch_size = 8, steps = 1000;
  double learning_rate = 0.1;
  double evaluation_ratio = 2;
  bool use_dense_chain = true;
};

struct TrialTime {
  double cpu_seconds = 0;  ///< Of one whole trial: this process's processor time.
  double seconds = 0;      ///< Wall clock.
  double val_error = 0;    ///< At the end.
};

/// Samples in memory, once for all trials.
std::shared_ptr<const TrialData> bench_study_data(const DataSet& data);
/// One trial in this process, one thread.
TrialTime bench_trial(const BenchStudyOptions& options, std::shared_ptr<const TrialData> data);

}  // namespace cohort
