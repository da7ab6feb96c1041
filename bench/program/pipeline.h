#pragma once
// Times a training step through a pipeline for each schedule, beside one worker and beside the forecast.

#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

struct PipelineTimes {
  Layout layout;
  double step_seconds = 0;       ///< Median of the steps, optimizer included.
  double predicted_seconds = 0;  ///< The step as forecast from the times of layers: pipeline.cpp.
  double bubble = 0;             ///< Measured, median: idle time / (ranks x time from the first action to the last).
  double predicted_bubble = 0;
  double theoretical_bubble = 0;  ///< The schedule's own: all parts of all stages equal, transfers that take no time.
  std::string trace;              ///< The last measured step as Chrome trace events.
};

struct BenchPipelineOptions {
  std::string workload = "gpt";  ///< See step.h.
  std::vector<std::string> schedules = {"1f1b"};
  std::string split = "auto";  ///< As in a layout: auto, even, or first layers (3/5).
  UpdateRule rule;
  std::string backend = "auto";
  int num_ranks = 2, num_micro_batches = 4;
  int steps = 20;  ///< Steps of each kind; blocks of five alternate.
};

struct BenchPipelineTimes {
  double one_worker_seconds = 0;         ///< Rank 0 with the whole batch and no pipeline, while the others are idle.
  std::vector<PipelineTimes> schedules;  ///< In the requested order.
};

/// Forks its ranks; the calling process must have one thread. Error when a rank fails.
BenchPipelineTimes bench_pipeline(const BenchPipelineOptions& options);

struct BenchDelaysOptions {
  std::vector<std::string> schedules = {"1f1b"};
  std::string backend = "auto";
  int num_ranks = 2, num_micro_batches = 8;
  double part_seconds = 0.012;  ///< Seconds of forward, of the input part and of the weight part of a micro-batch on each rank.
  int steps = 3;
};

/// Measures with layers that sleep, which leaves the time of the runtime itself, on any number of ranks. predicted_seconds is the
/// schedule's simulation with these very delays.
std::vector<PipelineTimes> bench_pipeline_delays(const BenchDelaysOptions& options);

/// 1F1B with stages that sleep as long as the layers of `model` (of pictures, 3x32x32, 16 a micro-batch) compute here, cut with split=even
/// and with split=auto, in this order: what the cut is worth on more ranks than there are cores. options.schedules and part_seconds do not
/// count.
std::vector<PipelineTimes> bench_split_delays(const std::string& model, const BenchDelaysOptions& options);

}  // namespace cohort
