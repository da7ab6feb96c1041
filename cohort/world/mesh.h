#pragma once
// Arranges ranks on the axes data x pipe x tensor. Torch-free.

#include <string>
#include <vector>

namespace cohort {

/// Coordinates of a rank.
struct MeshPoint {
  int data = 0, pipe = 0, tensor = 0;
  bool operator==(const MeshPoint&) const = default;
};

/// Immutable.
class Mesh {
 public:
  Mesh() : Mesh(1, 1, 1) {}
  /// `order` names the axes from the slowest to the fastest changing, such as "dp-pp-tp": neighbouring ranks then differ in `tensor`.
  /// Error(kBadInput) for an invalid order or a degree below 1.
  Mesh(int data, int pipe, int tensor, const std::string& order = "dp-pp-tp");
  /// Pipeline stages with different data degrees; ranks of stage 0 come first. All replicas have `tensor` ranks.
  Mesh(const std::vector<int>& data_of_pipe, int tensor);

  int num_ranks() const { return static_cast<int>(points_.size()); }
  int pipe_size() const { return static_cast<int>(data_of_pipe_.size()); }
  int tensor_size() const { return tensor_; }
  int data_size(int pipe) const { return data_of_pipe_[static_cast<size_t>(pipe)]; }
  bool is_uniform() const;  ///< All stages have the same data degree.

  const MeshPoint& point(int rank) const { return points_[static_cast<size_t>(rank)]; }
  int rank_at(const MeshPoint& point) const;  ///< Error(kBadInput) if there is none.
  /// Ranks that differ from `rank` only on that axis, in its order, including `rank`.
  std::vector<int> data_ranks(int rank) const;
  std::vector<int> tensor_ranks(int rank) const;

 private:
  std::vector<int> data_of_pipe_;
  int tensor_ = 1;
  std::vector<MeshPoint> points_;
};

}  // namespace cohort
