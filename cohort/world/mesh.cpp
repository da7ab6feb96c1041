#include "cohort/world/mesh.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "cohort/base/fail.h"

namespace cohort {

namespace {

constexpr int64_t kMaxRanks = 1 << 20;  // Far beyond any job; keeps all products within int.

void check_degree(const char* axis, int degree) {
  if (degree < 1) fail(ErrorCode::kBadInput, "The mesh's ", axis, " degree is ", degree, "; it must be at least 1.");
}

void check_num_ranks(int64_t num_ranks) {
  if (num_ranks > kMaxRanks) fail(ErrorCode::kBadInput, "A mesh of more than ", kMaxRanks, " ranks; use smaller degrees.");
}

struct Axis {
  std::string_view name;
  int MeshPoint::* coordinate;
};
constexpr std::array<Axis, 3> kAxes = {{{"dp", &MeshPoint::data}, {"pp", &MeshPoint::pipe}, {"tp", &MeshPoint::tensor}}};

/// The axes in the given order, from the slowest to the fastest.
std::array<Axis, 3> parse_order(const std::string& order) {
  std::array<Axis, 3> axes = kAxes;
  const auto by_name = [](const Axis& a, const Axis& b) { return a.name < b.name; };
  do {
    std::string name;
    for (const Axis& axis : axes) name.append(name.empty() ? "" : "-").append(axis.name);
    if (name == order) return axes;
  } while (std::next_permutation(axes.begin(), axes.end(), by_name));
  fail(ErrorCode::kBadInput, "\"", order,
       "\": invalid order of mesh axes; name dp, pp and tp once each, the slowest first, such as \"dp-pp-tp\".");
}

std::vector<int> ranks_along(int size, const std::function<int(int)>& rank_at) {
  std::vector<int> ranks;
  for (int index = 0; index < size; ++index) ranks.push_back(rank_at(index));
  return ranks;
}

}  // namespace

Mesh::Mesh(int data, int pipe, int tensor, const std::string& order) : tensor_(tensor) {
  check_degree("data-parallel", data);
  check_degree("pipeline", pipe);
  check_degree("tensor-parallel", tensor);
  check_num_ranks(int64_t{data} * pipe);
  check_num_ranks(int64_t{data} * pipe * tensor);
  const std::array<Axis, 3> axes = parse_order(order);
  const MeshPoint sizes{data, pipe, tensor};
  data_of_pipe_.assign(static_cast<size_t>(pipe), data);
  MeshPoint point;
  for (int slow = 0; slow < sizes.*axes[0].coordinate; ++slow)
    for (int middle = 0; middle < sizes.*axes[1].coordinate; ++middle)
      for (int fast = 0; fast < sizes.*axes[2].coordinate; ++fast) {
        point.*axes[0].coordinate = slow;
        point.*axes[1].coordinate = middle;
        point.*axes[2].coordinate = fast;
        points_.push_back(point);
      }
}

Mesh::Mesh(const std::vector<int>& data_of_pipe, int tensor) : data_of_pipe_(data_of_pipe), tensor_(tensor) {
  if (data_of_pipe.empty()) fail(ErrorCode::kBadInput, "A mesh without pipeline stages; name the data-parallel degree of at least one.");
  check_degree("tensor-parallel", tensor);
  for (int pipe = 0; pipe < pipe_size(); ++pipe) {
    const int data_ranks = data_size(pipe);
    check_degree("data-parallel", data_ranks);
    check_num_ranks(int64_t{data_ranks} * tensor + num_ranks());
    for (int data = 0; data < data_ranks; ++data)
      for (int index = 0; index < tensor; ++index) points_.push_back({data, pipe, index});
  }
}

bool Mesh::is_uniform() const {
  return std::all_of(data_of_pipe_.begin(), data_of_pipe_.end(), [&](int size) { return size == data_of_pipe_.front(); });
}

int Mesh::rank_at(const MeshPoint& point) const {
  const auto found = std::find(points_.begin(), points_.end(), point);
  if (found == points_.end())
    fail(ErrorCode::kBadInput, "The mesh of ", num_ranks(), " ranks has none at data ", point.data, ", pipe ", point.pipe, ", tensor ",
         point.tensor, ".");
  return static_cast<int>(found - points_.begin());
}

std::vector<int> Mesh::data_ranks(int rank) const {
  const MeshPoint here = point(rank);
  return ranks_along(data_size(here.pipe), [&](int data) { return rank_at({data, here.pipe, here.tensor}); });
}

std::vector<int> Mesh::tensor_ranks(int rank) const {
  const MeshPoint here = point(rank);
  return ranks_along(tensor_, [&](int tensor) { return rank_at({here.data, here.pipe, tensor}); });
}

}  // namespace cohort
