#include "cohort/train/model/batch_tensors.h"

#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "tests/support/errors.h"

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

TEST_CASE("a loss that does not fit its targets names the model and what it got") {
  LayerGraph model;
  model.set_title("model mine");
  const at::Tensor logits = at::randn({6, 4}), target = at::full({6}, 7, at::kLong);
  CHECK(error_or_none([&] { mean_loss(model, logits, target); }) ==
        "model mine: the loss got the target 7, and the output, (6, 4) float32, has scores of 4 classes, 0 to 3; let the last layer give a "
        "score for each class of the data (COHORT_MODEL: options.data().num_classes) (LibTorch says: Target 7 is out of bounds)");
  CHECK(
      error_or_none([&] {
        mean_loss(model, logits.narrow(0, 0, 5), target);
      }).find("model mine: the loss got the output (5, 4) float32, which is 5 rows of 4 logits, and the data has 6 targets, (6) int64;") ==
      0);
  CHECK(error_or_none([&] { mean_loss(model, at::ones({}), target); }).find("the output () float32, which has no scores") !=
        std::string::npos);
  CHECK(error_or_none([&] { mean_loss(model, at::ones({6, 0}), target); }).find("the output (6, 0) float32") != std::string::npos);
  CHECK(error_or_none([&] { mean_loss(model, at::Tensor(), target); }).find("the output no tensor") != std::string::npos);
  CHECK(error_or_none([&] {
          mean_loss(model, logits.to(at::kLong), target % 4);
        }).find("the cross-entropy failed on the output (6, 4) int64 and the targets (6) int64; make") != std::string::npos);
  model.set_loss([](const at::Tensor& output, const at::Tensor& of_data) { return (output - of_data).square().mean(); });
  CHECK(error_or_none([&] {
          mean_loss(model, logits, target);
        }).find("model mine: the model's own loss failed on the output (6, 4) float32 and the targets (6) int64; make the sizes") == 0);
}

TEST_CASE("a loss without a gradient says where it was cut off") {
  LayerGraph model;
  model.set_title("model mine");
  const at::Tensor output = at::randn({6, 4}).requires_grad_();
  CHECK(error_or_none([&] { check_has_gradient(model, output, output.sum()); }).empty());
  CHECK(error_or_none([&] { check_has_gradient(model, output, output.detach().sum()); })
            .find("model mine: the model's own loss is detached from the output, (6, 4) float32, so it has no gradient; see that in the "
                  "loss there is no detach()") == 0);
  CHECK(error_or_none([&] {
          check_has_gradient(model, output.detach(), output.detach().sum());
        }).find("model mine: its output, (6, 4) float32, is detached from its weights") == 0);
}

}  // namespace
}  // namespace cohort
