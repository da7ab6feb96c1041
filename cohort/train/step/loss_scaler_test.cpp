#include "cohort/train/step/loss_scaler.h"

#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

TEST_CASE("the scale doubles after 2000 clean steps in a row and halves after an overflow") {
  LossScaler scaler;
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.gradient_factor() == 1.0 / 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 131072);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  scaler.update(true);  // the count begins anew
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(false);
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 131072);
  CHECK(scaler.skipped_steps() == 1);
}

TEST_CASE("a fixed scale stays, and no scale is 1") {
  LossScaler fixed({.initial = 128, .dynamic = false});
  for (int i = 0; i < 3000; ++i) fixed.update(i % 20 == 0);
  CHECK(fixed.scale() == 128);
  CHECK(fixed.skipped_steps() == 150);
  CHECK(LossScaler::none().gradient_factor() == 1);
}

TEST_CASE("overflows without end are the model's") {
  for (const bool dynamic : {true, false}) {
    LossScaler scaler({.dynamic = dynamic});
    for (int i = 0; i < 29; ++i) scaler.update(true);
    scaler.update(false);  // not in a row
    for (int i = 0; i < 29; ++i) scaler.update(true);
    std::string text;
    try {
      scaler.update(true);
    } catch (const Error& error) {
      text = error.what();
      CHECK(error.code() == ErrorCode::kFailed);
    }
    CHECK(text.find("infinite or NaN in 30 steps in a row") != std::string::npos);
    CHECK((text.find("the model itself makes them") != std::string::npos) == dynamic);
  }
}

TEST_CASE("the scale grows and shrinks within what a float can hold") {
  LossScaler scaler({.growth_interval = 1});
  for (int i = 0; i < 300; ++i) scaler.update(false);
  CHECK(scaler.scale() == 0x1p127);
}

TEST_CASE("a resumed run goes on where it was") {
  LossScaler one({.growth_interval = 5});
  for (const bool skipped : {true, false, false, true, true, false, false, false}) one.update(skipped);
  LossScaler two({.growth_interval = 5});
  two.load(Json::parse(one.state().dump()));
  CHECK(two.skipped_steps() == 3);
  for (int i = 0; i < 7; ++i) {
    one.update(i == 4), two.update(i == 4);
    CHECK(one.scale() == two.scale());
  }
  LossScaler fixed({.initial = 8, .dynamic = false});
  fixed.load(one.state());
  CHECK(fixed.scale() == 8);
}

TEST_CASE("damaged states and senseless options are refused") {
  LossScaler scaler;
  const Json good = scaler.state();
  for (const char* key : {"scale", "clean_steps", "skipped_in_a_row", "skipped_steps"}) {
    Json bad = good;
    bad[key] = -1;
    CHECK_THROWS_AS(scaler.load(bad), Error);
    bad[key] = "many";
    CHECK_THROWS_AS(scaler.load(bad), Error);
    bad.erase(key);
    CHECK_THROWS_AS(scaler.load(bad), Error);
  }
  CHECK_THROWS_AS(scaler.load(Json()), Error);
  CHECK(scaler.state() == good);
  CHECK_THROWS_AS(LossScaler({.initial = 0}), Error);
  CHECK_THROWS_AS(LossScaler({.initial = std::numeric_limits<double>::infinity()}), Error);
  CHECK_THROWS_AS(LossScaler({.growth = 1}), Error);
  CHECK_THROWS_AS(LossScaler({.backoff = 1}), Error);
  CHECK_THROWS_AS(LossScaler({.growth_interval = 0}), Error);
}

}  // namespace

namespace {

std::shared_ptr<LayerGraph> three_layers() {
  auto graph = std::make_shared<LayerGraph>();
  graph->add("first", "linear", torch::nn::Linear(4, 4));
  graph->add("norm", "batchnorm", torch::nn::BatchNorm1d(4));
  graph->add("grow", "exp", [](const LayerGraph::Inputs& in) { return (in[0] * 1e3).exp(); });
  graph->add("last", "linear", torch::nn::Linear(4, 2));
  return graph;
}

TEST_CASE("not finite: the first layer whose output is not, with what it takes") {
  const auto graph = three_layers();
  const std::string found = first_not_finite(*graph, at::randn({8, 4}));
  CHECK(found.starts_with("; the first tensor that is not finite: the output of layer 'grow' (exp), (8, 4), "));
  CHECK(found.find(" of 32 elements; the largest number that it takes is ") != std::string::npos);
  CHECK(found.ends_with(", and of its weights none"));
}

TEST_CASE("not finite: weights and statistics come before outputs, the input before layers") {
  at::NoGradGuard no_grad;
  auto graph = three_layers();
  graph->parameters()[0][1][2] = NAN;
  CHECK(first_not_finite(*graph, at::ones({8, 4})) ==
        "; the first tensor that is not finite: weight 'first.weight', (4, 4), 1 of 16 elements, since an update before");
  graph = three_layers();
  graph->buffers()[0][0] = INFINITY;
  CHECK(first_not_finite(*graph, at::Tensor()).find("'norm.running_mean', (4), 1 of 4 elements") != std::string::npos);
  graph = three_layers();
  CHECK(first_not_finite(*graph, at::ones({8, 4}) / 0.0).find("the input, so the data hold it, (8, 4), 32 of 32") != std::string::npos);
}

TEST_CASE("not finite: where all are finite that is said; layers that do not run are no error") {
  LayerGraph graph;
  graph.add("first", "linear", torch::nn::Linear(4, 4));
  CHECK(first_not_finite(graph, at::ones({2, 4})).find("all outputs of layers on this rank's samples are finite") != std::string::npos);
  CHECK(first_not_finite(graph, at::Tensor()) == "; all weights of this rank are finite");
  CHECK(first_not_finite(graph, at::ones({2, 5})) == "; all weights are finite");
}

}  // namespace

}  // namespace cohort
