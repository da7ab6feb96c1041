#include "cohort/parallel/zero/zero_units.h"

#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include <numeric>

#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

NamedTensor make(const std::string& name, int64_t count, at::ScalarType type = at::kFloat, bool trained = true) {
  return {name, at::empty({count}, type).set_requires_grad(trained)};
}

TEST_CASE("a layer's parameters stay together, kinds are apart, large modules are cut between parameters") {
  const std::vector<NamedTensor> parameters = {
      make("a.weight", 100),      make("a.bias", 10), make("b.weight", 100), make("b.scale", 4, at::kFloat, false),
      make("b.bias", 10),         make("c.x", 300),   make("c.y", 300),      make("c.z", 5),
      make("c.d", 7, at::kDouble)};
  const std::vector<ZeroUnit> units = plan_units(parameters, 600, 2);
  std::vector<std::vector<int>> found;
  for (const ZeroUnit& unit : units) found.push_back(unit.parameters);
  CHECK(found == std::vector<std::vector<int>>{{0, 1}, {2, 4}, {3}, {5}, {6}, {7}, {8}});
  CHECK(units[0].offsets == std::vector<int64_t>{0, 112});
  CHECK(units[0].num_elements == 128);  // 112 + 16, a multiple of 2 x 16.
  CHECK_FALSE(units[2].trained);
  CHECK((units[6].type == at::kDouble));
  CHECK(units[6].slice_bytes() == 64);
  CHECK(unit_name(units[0], parameters, 0) == "unit 0 (a.weight ... a.bias, 512 bytes)");
}

TEST_CASE("slices cover every element of every parameter exactly once") {
  const std::vector<NamedTensor> parameters = {make("a.w", 1),    make("a.empty", 0),           make("a.b", 37),
                                               make("b.w", 1000), make("b.d", 17, at::kDouble), make("b.h", 33, at::kHalf, false)};
  for (const int num_ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t unit_bytes : {int64_t{1}, int64_t{300}, int64_t{1} << 20}) {
      std::vector<std::vector<int>> owners(parameters.size());
      std::vector<int> num_pieces(parameters.size());
      for (size_t i = 0; i < parameters.size(); ++i) owners[i].assign(static_cast<size_t>(parameters[i].tensor.numel()), 0);
      for (const ZeroUnit& unit : plan_units(parameters, unit_bytes, num_ranks)) {
        CHECK(unit.num_elements == unit.slice_elements * num_ranks);
        CHECK(unit.slice_bytes() % 64 == 0);
        for (int rank = 0; rank < num_ranks; ++rank) {
          for (const SlicePiece& piece : slice_pieces(unit, parameters, rank)) {
            ++num_pieces[static_cast<size_t>(piece.parameter)];
            CHECK(piece.slice_offset + piece.count <= unit.slice_elements);
            for (int64_t i = 0; i < piece.count; ++i) ++owners[static_cast<size_t>(piece.parameter)][static_cast<size_t>(piece.begin + i)];
          }
        }
      }
      for (size_t i = 0; i < parameters.size(); ++i) {
        CHECK(owners[i] == std::vector<int>(owners[i].size(), 1));
        CHECK(num_pieces[i] >= 1);  // Empty ones too: somebody saves them.
      }
    }
  }
}

}  // namespace
}  // namespace cohort
