#pragma once
// What a run reports: lines of JSON to metrics.jsonl and, with --json, to stdout; metrics.csv; TensorBoard events. Only rank 0 has one.
// Formats: docs/formats/metrics.md.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "cohort/base/json_fwd.h"
#include "cohort/report/tensorboard.h"

namespace cohort {

struct StepMetrics {
  int64_t step = 0;  ///< From 1.
  double loss = 0;
  double step_seconds = 0, data_seconds = 0, compute_seconds = 0, exchange_seconds = 0, optimizer_seconds = 0;
  double samples_per_second = 0, learning_rate = 0;
  double gradient_norm = -1;  ///< -1: not computed.
};

/// A measurement of the gradient noise scale.
struct NoiseReading {
  int64_t step = 0;                             ///< From 1.
  double small_batch = 0, large_batch = 0;      ///< Samples.
  double small_squared = 0, large_squared = 0;  ///< Squared norms of the mean gradients, as measured in this step.
  double gradient_squared = 0, trace = 0;       ///< Estimates of |G|^2 and tr(Sigma) per sample, averaged over the last measurements.
  double noise_scale = 0;                       ///< trace / gradient_squared, samples; NaN where there is no estimate.
};

/// One thread. Lines are written whole.
class Metrics {
 public:
  /// Appends to the files of `run`; lines of steps after `resume_step` (what a killed run left beyond its checkpoint) are dropped first; 0:
  /// a new run.
  Metrics(const std::string& run, int64_t resume_step, bool to_stdout);
  ~Metrics();
  Metrics(const Metrics&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double loss, double error);
  void noise_scale(const NoiseReading& reading);
  /// Any other event; `to_stdout_too` false for what only the report reads.
  void event(const Json& line, bool to_stdout_too = true);
  void flush();

 private:
  std::FILE* jsonl_ = nullptr;
  std::FILE* csv_ = nullptr;
  std::unique_ptr<TensorBoardWriter> events_;
  bool to_stdout_;
};

}  // namespace cohort
