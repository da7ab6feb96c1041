#pragma once
// Where the ranks of a layout lie on a cluster: hosts and kinds of device of the groups that exchange. Torch-free. Internal to this room.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/plan/profile/cluster.h"

namespace cohort {

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
