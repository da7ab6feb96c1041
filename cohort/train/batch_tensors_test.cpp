#include "cohort/train/batch_tensors.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include "cohort/base/error.h"

namespace cohort {
namespace {

TEST_CASE("cross-entropy: label smoothing spreads a part of each target over all classes") {
  const at::Tensor logits = at::randn({6, 5, 7}, at::kDouble), target = at::randint(7, {6, 5}, at::kLong);
  const at::Tensor log_odds = at::log_softmax(logits, -1);
  const double of_class = -log_odds.gather(-1, target.unsqueeze(-1)).mean().item<double>(), of_all = -log_odds.mean().item<double>();
  CHECK(cross_entropy(logits, target).item<double>() == doctest::Approx(of_class));
  CHECK(cross_entropy(logits, target, /*sum=*/true).item<double>() == doctest::Approx(30 * of_class));
  CHECK(cross_entropy(logits, target, false, 0.1).item<double>() == doctest::Approx(0.9 * of_class + 0.1 * of_all));
  CHECK_THROWS_AS(cross_entropy(logits, target.narrow(0, 0, 5)), Error);
}

}  // namespace
}  // namespace cohort
