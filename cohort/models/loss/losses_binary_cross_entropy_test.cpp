#include "cohort/models/loss/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cmath>

#include "tests/support/errors.h"

namespace cohort {
namespace {

at::Tensor labels_of(at::IntArrayRef sizes) { return at::rand(sizes).lt(0.3).to(at::kFloat); }

TEST_CASE("binary cross-entropy: the mean over samples and labels of -log of each target's probability") {
  torch::manual_seed(3);
  const at::Tensor scores = at::randn({6, 4}), target = labels_of({6, 4});
  double sum = 0;
  for (int64_t row = 0; row < 6; ++row)
    for (int64_t k = 0; k < 4; ++k) {
      const double probability = 1 / (1 + std::exp(-scores[row][k].item<double>()));
      sum -= std::log(target[row][k].item<double>() == 1 ? probability : 1 - probability);
    }
  CHECK(cohort::binary_cross_entropy(scores, target).item<double>() == doctest::Approx(sum / 24).epsilon(1e-6));
  CHECK(cohort::binary_cross_entropy(scores.view({6, 2, 2}), target).item<double>() == doctest::Approx(sum / 24).epsilon(1e-6));
}

TEST_CASE("binary cross-entropy: no score overflows, and the gradient is probability minus target, over their number") {
  const at::Tensor scores = at::tensor({1000.0F, -1000.0F, 1000.0F, 0.0F}).view({2, 2}).requires_grad_(true);
  const at::Tensor target = at::tensor({1.0F, 0.0F, 0.0F, 1.0F}).view({2, 2});
  const at::Tensor loss = cohort::binary_cross_entropy(scores, target);
  CHECK(loss.item<double>() == doctest::Approx((1000 + std::log(2.0)) / 4));
  loss.backward();
  CHECK(scores.grad().view({-1}).allclose(at::tensor({0.0F, 0.0F, 0.25F, -0.125F})));
}

TEST_CASE("binary cross-entropy: parts of a batch, weighted by their samples, add up; half precision is computed in fp32") {
  torch::manual_seed(4);
  const at::Tensor scores = at::randn({7, 5}), target = labels_of({7, 5});
  const double whole = cohort::binary_cross_entropy(scores, target).item<double>();
  double parts = 0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 4}, {5, 2}})
    parts += static_cast<double>(count) *
             cohort::binary_cross_entropy(scores.narrow(0, first, count), target.narrow(0, first, count)).item<double>() / 7;
  CHECK(parts == doctest::Approx(whole).epsilon(1e-6));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor half = scores.to(type), loss = cohort::binary_cross_entropy(half, target);
    CHECK(loss.dtype() == at::kFloat);
    CHECK(loss.equal(cohort::binary_cross_entropy(half.to(at::kFloat), target)));
  }
}

TEST_CASE("binary cross-entropy: a model in double keeps its digits") {
  torch::manual_seed(5);
  const at::Tensor scores = at::randn({9, 3}, at::TensorOptions(at::kDouble)), target = labels_of({9, 3});
  const double whole = cohort::binary_cross_entropy(scores, target).item<double>();
  const double parts = (cohort::binary_cross_entropy(scores.narrow(0, 0, 2), target.narrow(0, 0, 2)).item<double>() * 2 +
                        cohort::binary_cross_entropy(scores.narrow(0, 2, 7), target.narrow(0, 2, 7)).item<double>() * 7) /
                       9;
  CHECK(std::abs(parts - whole) < 1e-14);
}

TEST_CASE("binary cross-entropy: what does not fit is refused") {
  CHECK(error_of([] { cohort::binary_cross_entropy(at::randn({5, 2}), labels_of({5, 3})); }).find("one score for each label") !=
        std::string::npos);
  CHECK(error_of([] { cohort::binary_cross_entropy(at::randn({5, 2}), labels_of({5, 2}).to(at::kLong)); }).find("targets") !=
        std::string::npos);
}

}  // namespace
}  // namespace cohort
