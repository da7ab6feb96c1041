#pragma once
// What a rank exchanges over the data axis in a step, and what of it computing does not hide. Torch-free. Internal to this room.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

struct DataExchange {
  int num_ranks = 1;
  bool leaves_host = false;
  int zero = 0;
  std::string compress = "none";
  const CodingCost* coding = nullptr;  ///< Where it was measured.
  bool one_copy = false;
  bool overlaps = false;       ///< Buckets leave during the last backward: one stage, whole model.
  bool hides = true;           ///< Computing goes on meanwhile: false where it is the same cores that move the bytes.
  int num_backwards = 1;       ///< Micro-steps of a step that end in an exchange under ZeRO 2 and 3.
  int num_forwards = 1;        ///< Forwards, and as many backwards, for which ZeRO 3 gathers weights.
  int64_t gradient_bytes = 0;  ///< Of the rank's trained weights.
  int64_t weight_bytes = 0;    ///< Gathered by ZeRO 3.
  int64_t bucket_bytes = 0;
  int optimizer_arrays = 0;
  double forward_seconds = 0;   ///< Of one micro-batch,
  double backward_seconds = 0;  ///< likewise.
  double memory_bytes_per_second = 0;
};

struct ExchangeForecast {
  double exchange_seconds = 0, exposed_seconds = 0, update_seconds = 0;
};

/// Formulas: exchange_forecast.cpp.
ExchangeForecast forecast_exchange(const Cluster& cluster, const DataExchange& asked);

// Where the ranks of a layout lie on a cluster: hosts and kinds of device of the groups that exchange. Torch-free. Internal to this room.

/// Samples of the largest piece of a share, which is in whole ones.
inline int64_t largest_piece(double samples) { return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(samples - 1e-9))); }

/// Ranks of the layout are the cluster's first devices, numbered as Mesh (world/mesh.h) numbers them, without a table of all of them.
class MeshPlaces {
 public:
  /// Error(kBadInput) where the layout has more ranks than the cluster has devices.
  MeshPlaces(const Layout& layout, const Cluster& cluster);

  int num_workers() const { return static_cast<int>(degrees_.size()); }
  int degree(int worker) const { return degrees_[static_cast<size_t>(worker)]; }
  int rank(int data, int worker, int tensor) const;
  /// Kinds of device of a worker's ranks, each once.
  std::vector<int> kinds(int worker) const;
  /// Whether any of the worker's groups of that axis is on several hosts.
  bool tensor_leaves_host(int worker) const;
  bool data_leaves_host(int worker) const;
  /// Whether any hand-over from worker to worker is between hosts.
  bool handover_leaves_host(int from, int to) const;

 private:
  const Cluster& cluster_;
  int tp_;
  bool is_even_;
  std::vector<int> degrees_, first_rank_;  // Of each worker.
  int data_stride_ = 1, pipe_stride_ = 1, tensor_stride_ = 1;
};

}  // namespace cohort
