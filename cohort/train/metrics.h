#pragma once
// What a run reports: lines of JSON to metrics.jsonl and, with --json, to stdout; metrics.csv; TensorBoard events. Only rank 0 has one.
// A disk that is full, for a moment or for good, does not end the training: what cannot be written is left out whole and counted, a warning
// says so, and a line in metrics.jsonl as soon as it fits. Formats: docs/formats/metrics.md.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/text/json_fwd.h"

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

/// One thread. Lines are whole or absent.
class Metrics {
 public:
  /// Appends to the files of `run`; lines of steps after `resume_step` (what a killed run left beyond its checkpoint) are dropped first,
  /// and a part of a line at the end; 0: a new run. Error(kFailed) where the files cannot be opened.
  Metrics(const std::string& run, int64_t resume_step, bool to_stdout);
  ~Metrics();
  Metrics(const Metrics&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double loss, double error);  ///< NaN: there is no error.
  void noise_scale(const NoiseReading& reading);
  /// Any other event; `to_stdout_too` false for what only the report reads.
  void event(const Json& line, bool to_stdout_too = true);
  void flush();
  /// The last call: all is on the disk as far as it will be. Returns what is missing, as "metrics.jsonl lacks 3 lines", "" for nothing.
  std::string finish();

 private:
  class Output;
  struct Outputs;
  void scalars(int64_t step, const std::vector<std::pair<const char*, double>>& values);

  std::unique_ptr<Outputs> outputs_;
};

}  // namespace cohort
