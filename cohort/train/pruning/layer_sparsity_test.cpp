#include "cohort/train/pruning/layer_sparsity.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace cohort {
namespace {

double elements(const std::vector<int64_t>& shape) {
  double product = 1;
  for (const int64_t n : shape) product *= static_cast<double>(n);
  return product;
}

TEST_CASE("layers share a sparsity so that all together have it, large matrices more of it, and none less as it rises") {
  const std::vector<std::vector<int64_t>> shapes = {{64, 32, 5, 5}, {1024, 3136}, {10, 1024}, {1, 1}, {3, 7}};
  std::vector<double> before(shapes.size(), 0.0);
  for (const double sparsity : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    CAPTURE(sparsity);
    const std::vector<double> found = layer_sparsities(shapes, sparsity);
    REQUIRE(found.size() == shapes.size());
    double zeros = 0, all = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i] >= before[i]);
      CHECK(found[i] < 1);
      zeros += found[i] * elements(shapes[i]);
      all += elements(shapes[i]);
    }
    CHECK(zeros / all == doctest::Approx(sparsity).epsilon(1e-9));
    before = found;
  }
  const std::vector<double> found = layer_sparsities(shapes, 0.9);
  CHECK(found[2] == 0);  // 10,240 numbers are dense by then.
  CHECK(found[1] > 0.9);
  CHECK(found[0] < 0.9);
  // By hand: e (64 + 32 + 5 + 5 + 1024 + 3136) numbers are kept of the two that are not dense.
  const double kept = 0.1 * (51200 + 3211264 + 10240 + 1 + 21) - 10240 - 1 - 21, e = kept / (106 + 4160);
  CHECK(found[0] == doctest::Approx(1 - e * 106 / 51200));
  CHECK(found[1] == doctest::Approx(1 - e * 4160 / 3211264));
}

TEST_CASE("layers of one shape have the sparsity that was asked for") {
  for (const double found : layer_sparsities({{8, 8}, {8, 8}, {8, 8}}, 0.75)) CHECK(found == doctest::Approx(0.75));
  CHECK(layer_sparsities({}, 0.5).empty());
}

}  // namespace
}  // namespace cohort
