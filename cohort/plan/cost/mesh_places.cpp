#include "cohort/plan/cost/mesh_places.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

MeshPlaces::MeshPlaces(const Layout& layout, const Cluster& cluster)
    : cluster_(cluster), tp_(layout.tp), is_even_(layout.is_even()), degrees_(layout.data_degrees()) {
  if (layout.num_ranks() > cluster.num_devices())
    fail(ErrorCode::kBadInput, name_settings("--layout "), to_text(layout), " needs ", layout.num_ranks(), " devices, and the cluster '",
         cluster.name, "' has ", cluster.num_devices());
  int next = 0;
  for (const int degree : degrees_) {
    first_rank_.push_back(next);
    next += degree * tp_;
  }
  std::vector<std::string> axes = split(layout.order, '-');
  std::reverse(axes.begin(), axes.end());
  int stride = 1;
  for (const std::string& axis : axes) {
    (axis == "dp" ? data_stride_ : axis == "pp" ? pipe_stride_ : tensor_stride_) = stride;
    stride *= axis == "dp" ? degrees_.front() : axis == "pp" ? num_workers() : tp_;
  }
}

int MeshPlaces::rank(int data, int worker, int tensor) const {
  if (!is_even_) return first_rank_[static_cast<size_t>(worker)] + data * tp_ + tensor;
  return data * data_stride_ + worker * pipe_stride_ + tensor * tensor_stride_;
}

std::vector<int> MeshPlaces::kinds(int worker) const {
  if (!cluster_.is_mixed()) return {cluster_.hosts.front().device};
  std::vector<int> kinds;
  for (int data = 0; data < degree(worker); ++data)
    for (int tensor = 0; tensor < tp_; ++tensor) {
      const int kind = cluster_.device_of_rank(rank(data, worker, tensor));
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  return kinds;
}

bool MeshPlaces::tensor_leaves_host(int worker) const {
  for (int data = 0; data < degree(worker) && tp_ > 1; ++data)
    if (cluster_.host_of_rank(rank(data, worker, 0)) != cluster_.host_of_rank(rank(data, worker, tp_ - 1))) return true;
  return false;
}

bool MeshPlaces::data_leaves_host(int worker) const {
  for (int tensor = 0; tensor < tp_ && degree(worker) > 1; ++tensor)
    if (cluster_.host_of_rank(rank(0, worker, tensor)) != cluster_.host_of_rank(rank(degree(worker) - 1, worker, tensor))) return true;
  return false;
}

bool MeshPlaces::handover_leaves_host(int from, int to) const {
  const int pairs = std::max(degree(from), degree(to));
  for (int data = 0; data < pairs; ++data)
    for (int tensor = 0; tensor < tp_; ++tensor)
      if (cluster_.host_of_rank(rank(data % degree(from), from, tensor)) != cluster_.host_of_rank(rank(data % degree(to), to, tensor)))
        return true;
  return false;
}

}  // namespace cohort
