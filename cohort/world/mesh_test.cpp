#include "cohort/world/mesh.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>

#include "cohort/base/fail.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

using Ranks = std::vector<int>;

/// `line` is the ranks that differ from `rank` in `axis` alone, in its order.
void check_line(const Mesh& mesh, int rank, const Ranks& line, int size, int MeshPoint::* axis) {
  REQUIRE(static_cast<int>(line.size()) == size);
  for (int index = 0; index < size; ++index) {
    MeshPoint expected = mesh.point(rank);
    expected.*axis = index;
    CHECK(mesh.point(line[static_cast<size_t>(index)]) == expected);
  }
}

void check_mesh(const Mesh& mesh) {
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    CHECK(mesh.rank_at(mesh.point(rank)) == rank);
    check_line(mesh, rank, mesh.data_ranks(rank), mesh.data_size(mesh.point(rank).pipe), &MeshPoint::data);
    check_line(mesh, rank, mesh.tensor_ranks(rank), mesh.tensor_size(), &MeshPoint::tensor);
  }
}

TEST_CASE("every order puts each point on one rank, its last axis on neighbours") {
  for (const std::string order : {"dp-pp-tp", "dp-tp-pp", "pp-dp-tp", "pp-tp-dp", "tp-dp-pp", "tp-pp-dp"}) {
    const Mesh mesh(2, 3, 4, order);
    CHECK(mesh.num_ranks() == 24);
    CHECK(mesh.is_uniform());
    check_mesh(mesh);
    const std::string slowest = order.substr(0, 2), fastest = order.substr(6);
    const auto coordinate = [](const MeshPoint& point, const std::string& axis) {
      return axis == "dp" ? point.data : axis == "pp" ? point.pipe : point.tensor;
    };
    CHECK(coordinate(mesh.point(1), fastest) == 1);
    CHECK(coordinate(mesh.point(11), slowest) < coordinate(mesh.point(23), slowest));
  }
}

TEST_CASE("known places") {
  const Mesh mesh(2, 2, 2);
  CHECK(mesh.point(5) == MeshPoint{1, 0, 1});
  CHECK(mesh.data_ranks(5) == Ranks{1, 5});
  CHECK(mesh.tensor_ranks(5) == Ranks{4, 5});
  CHECK(Mesh(2, 2, 2, "pp-tp-dp").data_ranks(5) == Ranks{4, 5});
  const Mesh lone;
  CHECK(lone.num_ranks() == 1);
  for (const auto& [data, pipe, tensor] : {std::array{1, 1, 1}, {5, 1, 1}, {1, 5, 1}, {1, 1, 5}, {3, 1, 2}})
    check_mesh(Mesh(data, pipe, tensor));
}

TEST_CASE("stages with data-parallel degrees of their own") {
  const Mesh mesh({1, 3, 2}, 2);
  CHECK(mesh.num_ranks() == 12);
  CHECK_FALSE(mesh.is_uniform());
  CHECK(mesh.pipe_size() == 3);
  CHECK(mesh.data_size(1) == 3);
  CHECK(mesh.point(2) == MeshPoint{0, 1, 0});
  CHECK(mesh.data_ranks(5) == Ranks{3, 5, 7});
  CHECK(mesh.tensor_ranks(5) == Ranks{4, 5});
  check_mesh(mesh);
  // Equal degrees are the uniform mesh with its stages outermost.
  const Mesh equal({2, 2}, 3), uniform(2, 2, 3, "pp-dp-tp");
  CHECK(equal.is_uniform());
  for (int rank = 0; rank < 12; ++rank) CHECK(equal.point(rank) == uniform.point(rank));
}

TEST_CASE("what is no mesh is refused with the value") {
  CHECK(error_of([] { Mesh(1, 1, 1, "dp-pp"); }).find("\"dp-pp\"") != std::string::npos);
  for (const std::string order : {"", "dp-dp-tp", "dp-pp-tp-", "DP-PP-TP", "dp,pp,tp"})
    CHECK(error_of([&] { Mesh(1, 1, 1, order); }) != "");
  CHECK(error_of([] { Mesh(0, 1, 1); }).find("data-parallel degree is 0") != std::string::npos);
  CHECK(error_of([] { Mesh(1, -2, 1); }).find("pipeline degree is -2") != std::string::npos);
  CHECK(error_of([] { Mesh({1, 0}, 1); }).find("data-parallel degree is 0") != std::string::npos);
  CHECK(error_of([] { Mesh({1, 1}, 0); }).find("tensor-parallel degree is 0") != std::string::npos);
  CHECK(error_of([] { Mesh(Ranks{}, 1); }).find("stages") != std::string::npos);
  const int most = std::numeric_limits<int>::max();
  CHECK(error_of([&] { Mesh(most, most, most); }).find("ranks") != std::string::npos);
  CHECK(error_of([&] { Mesh({most, most}, most); }).find("ranks") != std::string::npos);
  const Mesh mesh(2, 1, 1);
  CHECK(error_of([&] { mesh.rank_at({0, 1, 0}); }).find("pipe 1") != std::string::npos);
}

}  // namespace
}  // namespace cohort
