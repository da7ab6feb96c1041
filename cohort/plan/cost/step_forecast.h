#pragma once
// Seconds and bytes of one training step under one layout, for the search, the forecast of a run and the charts. Torch-free; formulas in
// step_forecast.cpp, exchange_forecast.cpp and memory.cpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/profile/calibration_file.h"
#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/model_profile.h"
#include "cohort/schedule/simulate.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

/// The input of a plan: everything that it does not choose.
struct PlanProblem {
  ModelProfile profile;
  Cluster cluster;
  int64_t global_batch = 1;        ///< Samples of a step; a search for the time to a goal sets it (joint_search.h).
  int optimizer_arrays = 0;        ///< Arrays of the size of the weights: SGD 0, momentum 1, Adam 2.
  bool private_weights = false;    ///< Never share one copy of the weights per host.
  int64_t memory_limit_bytes = 0;  ///< Limit per rank below the memory of its device; 0: none.
  int64_t bucket_bytes = 8 << 20;  ///< Bucket size of the gradient exchange.
  bool writes_text = false;        ///< Rank 0 generates a text sample at the end.
  ForecastIntervals intervals;     ///< From errors of earlier forecasts; where empty, profile and cluster decide.
};

/// The precision of a layout: fp32 where it names none.
inline std::string precision_of(const Layout& layout) { return layout.precision.empty() ? "fp32" : layout.precision; }

/// A layout with its stages and recomputed layers: everything that decides a forecast.
struct Candidate {
  Layout layout;                ///< Without split and recompute, which the members below replace.
  StageAssignment stages;       ///< Empty without pipeline workers.
  std::vector<bool> recompute;  ///< One per layer.

  int64_t micro_batch(int64_t global_batch) const;  ///< Samples of the largest micro-batch, rounded up.
};

/// Bytes of one rank.
struct StepMemory {
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t buffers = 0;    ///< Running statistics, and measured pages of exchanges.
  int64_t buckets = 0;    ///< Gradient buckets, and whole units of ZeRO 2 and 3.
  int64_t stash = 0;      ///< Activations kept by the schedule, including inputs of stages.
  int64_t recompute = 0;  ///< The largest stash of a recomputed layer, while it runs again.
  int64_t working = 0;    ///< Temporaries: gradients of activations, scratch, messages; start and end of the run.
  int64_t overhead = 0;   ///< Allocator overhead, and memory of the process before its first tensor.
  int64_t total() const { return weights + gradients + optimizer + buffers + buckets + stash + recompute + working + overhead; }
};

/// Forecast of the ranks of one worker of the pipeline.
struct WorkerForecast {
  int num_ranks = 1;                                 ///< dp x tp of them.
  std::string device;                                ///< The slowest kind among them.
  std::vector<int> layers;                           ///< Ascending.
  double forward_seconds = 0, backward_seconds = 0;  ///< Per step; recompute counts as backward, exchanges of tp are included.
  double tensor_exchange_seconds = 0;                ///< The share of exchanges in these.
  double exchange_seconds = 0;                       ///< Exchange of gradients and weights over the data axis.
  double exposed_seconds = 0;                        ///< The part of it that is not hidden by compute.
  double update_seconds = 0;
  double idle_seconds = 0;   ///< Idle seconds per step.
  StepMemory memory;         ///< Of the rank with the most memory.
  int64_t memory_limit = 0;  ///< Memory limit of that rank.
};

struct StepForecast {
  double step_seconds = 0;
  double low_seconds = 0, high_seconds = 0;  ///< 90 % prediction interval.
  double pipeline_seconds = 0;               ///< From the first forward to the last backward.
  double bubble = 0;                         ///< Idle share of pipeline_seconds.
  std::vector<WorkerForecast> workers;       ///< One per worker of the pipeline; one without it.
  bool fits = true;                          ///< No rank has more than its limit.
  Timeline timeline;                         ///< Timeline of the pipeline; only on request.

  int64_t peak_memory_bytes() const;  ///< Of the rank with the most memory.
  /// The worker that is furthest over its limit, or nearest to it.
  const WorkerForecast& tightest_worker() const;
};

/// Forecasts seconds and bytes of a step under the schedule that ranks would execute. Error(kBadInput) for an invalid candidate: degrees
/// that do not fit the cluster, precision or tp that the profile lacks, batches that leave ranks without samples.
StepForecast forecast_step(const PlanProblem& problem, const Candidate& candidate, bool with_timeline = false);

// What a rank exchanges over the data axis in a step, and how much of it compute does not hide.

struct DataExchange {
  int num_ranks = 1;
  bool leaves_host = false;
  int zero = 0;
  std::string compress = "none";
  const CodingCost* coding = nullptr;  ///< Null where it was not measured.
  bool one_copy = false;
  bool overlaps = false;       ///< Buckets are exchanged during the last backward: one stage, whole model.
  bool hides = true;           ///< Compute continues meanwhile: false where the same cores move the bytes.
  int num_backwards = 1;       ///< Micro-steps of a step that end in an exchange under ZeRO 2 and 3.
  int num_forwards = 1;        ///< Forwards, and as many backwards, for which ZeRO 3 gathers weights.
  int64_t gradient_bytes = 0;  ///< Bytes of the rank's trained weights.
  int64_t weight_bytes = 0;    ///< Gathered by ZeRO 3.
  int64_t bucket_bytes = 0;
  int optimizer_arrays = 0;
  double forward_seconds = 0;   ///< Per micro-batch.
  double backward_seconds = 0;  ///< Per micro-batch.
  double memory_bytes_per_second = 0;
};

struct ExchangeForecast {
  double exchange_seconds = 0, exposed_seconds = 0, update_seconds = 0;
};

/// Formulas: exchange_forecast.cpp.
ExchangeForecast forecast_exchange(const Cluster& cluster, const DataExchange& asked);

// Placement of the ranks of a layout on a cluster: hosts and kinds of device of the groups that exchange.

/// Samples of the largest micro-batch of a share, in whole samples.
inline int64_t largest_micro_batch(double samples) { return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(samples - 1e-9))); }

/// The ranks of the layout are the first devices of the cluster, numbered as by Mesh (world/mesh.h), without a table of all ranks.
class MeshPlacement {
 public:
  /// Error(kBadInput) where the layout has more ranks than the cluster has devices.
  MeshPlacement(const Layout& layout, const Cluster& cluster);

  int num_workers() const { return static_cast<int>(degrees_.size()); }
  int degree(int worker) const { return degrees_[static_cast<size_t>(worker)]; }
  int rank(int data, int worker, int tensor) const;
  /// Kinds of device of a worker's ranks, each once.
  std::vector<int> kinds(int worker) const;
  /// Whether any group of the worker on that axis spans several hosts.
  bool tensor_leaves_host(int worker) const;
  bool data_leaves_host(int worker) const;
  /// Whether any transfer between the workers crosses hosts.
  bool handover_leaves_host(int from, int to) const;

 private:
  const Cluster& cluster_;
  int tp_;
  bool is_even_;
  std::vector<int> degrees_, first_rank_;  // One per worker.
  int data_stride_ = 1, pipe_stride_ = 1, tensor_stride_ = 1;
};

}  // namespace cohort
