#include "cohort/models/loss/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include <cmath>

#include "cohort/models/registry.h"
#include "tests/support/errors.h"

using namespace cohort;

namespace {

const DataShape kClasses{.input = {4}, .num_classes = 3};
const DataShape kLabels{.input = {4}, .num_classes = 3, .labels = true};
const DataShape kNumbers{.input = {4}, .num_classes = 1, .regression = true};

std::shared_ptr<LayerGraph> model_on(const DataShape& data, const std::string& loss) {
  std::shared_ptr<LayerGraph> model = build_model("fc:hidden=4", data, 1);
  set_named_loss(*model, loss, data);
  return model;
}

}  // namespace

TEST_CASE("named losses: each is its formula, by hand") {
  const at::Tensor scores = at::randn({5, 3}), target = at::randint(3, {5}, at::kLong);
  double squares = 0, logs = 0;
  for (int64_t row = 0; row < 5; ++row)
    for (int64_t k = 0; k < 3; ++k) {
      const double score = scores[row][k].item<double>(), wanted = target[row].item<int64_t>() == k ? 1 : 0;
      squares += (score - wanted) * (score - wanted);
      const double probability = 1 / (1 + std::exp(-score));
      logs -= wanted * std::log(probability) + (1 - wanted) * std::log(1 - probability);
    }
  CHECK(model_on(kClasses, "mse")->loss()(scores, target).item<double>() == doctest::Approx(squares / 15).epsilon(1e-5));
  CHECK(model_on(kClasses, "binary")->loss()(scores, target).item<double>() == doctest::Approx(logs / 15).epsilon(1e-5));
  CHECK(!model_on(kClasses, "cross-entropy")->loss());
  CHECK(!model_on(kClasses, "auto")->loss());
  CHECK(model_on(kNumbers, "mse")->loss_name() == "mse");
  const at::Tensor labels = target.unsqueeze(1).eq(at::arange(3)).to(at::kFloat);
  for (const char* name : {"auto", "binary"}) {
    CHECK(model_on(kLabels, name)->loss()(scores, labels).item<double>() == doctest::Approx(logs / 15).epsilon(1e-5));
    CHECK(model_on(kLabels, name)->loss_name() == "binary");
  }
}

TEST_CASE("named losses: parts of a batch, weighted by their samples, add up to the whole; rows of text are targets each") {
  for (const char* name : {"mse", "binary"}) {
    const LayerGraph::Loss loss = model_on(kClasses, name)->loss();
    const at::Tensor scores = at::randn({6, 2, 3}), target = at::randint(3, {6, 2}, at::kLong);
    const double whole = loss(scores, target).item<double>();
    const double parts = (loss(scores.narrow(0, 0, 2), target.narrow(0, 0, 2)).item<double>() * 2 +
                          loss(scores.narrow(0, 2, 4), target.narrow(0, 2, 4)).item<double>() * 4) /
                         6;
    CHECK(parts == doctest::Approx(whole).epsilon(1e-5));
  }
}

TEST_CASE("named losses: what does not go together is refused") {
  CHECK(error_of([] { model_on(kClasses, "hinge"); }) == "--loss \"hinge\" is not one of auto, cross-entropy, mse, binary");
  CHECK(error_of([] { model_on(kNumbers, "binary"); }).find("numbers to predict; use mse") != std::string::npos);
  for (const char* name : {"mse", "cross-entropy"})
    CHECK(error_of([&] { model_on(kLabels, name); }).find("is not for labels, of which a sample has any number; use binary") !=
          std::string::npos);
  const std::shared_ptr<LayerGraph> own = build_model("fc:hidden=4", kClasses, 1);
  own->set_loss([](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  CHECK(error_of([&] { set_named_loss(*own, "mse", kClasses); }).find("has a loss of its own") != std::string::npos);
  const LayerGraph::Loss loss = model_on(kClasses, "mse")->loss();
  CHECK(error_of([&] { loss(at::randn({5, 2}), at::randint(3, {5}, at::kLong)); }).find("3 scores for each target") != std::string::npos);
}
