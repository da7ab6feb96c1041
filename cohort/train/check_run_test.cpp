#include "cohort/train/check_run.h"

#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "tests/support/member_names.h"

namespace cohort {
namespace {

/// What check_run() says of two workers with that layout on that device; "" where they may start.
std::string refusal(const std::string& layout, const std::string& device) {
  Config config;
  config.model = "fc";
  config.device = device;
  try {
    check_run(resolve(config, parse_layout(layout, 2)), is_text_data(config.data));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    const std::string what = error.what();
    return what.find("this is a CPU build of LibTorch") != std::string::npos ? "" : what;  // Said last, where nothing else is wrong.
  }
  return "";
}

TEST_CASE("every ZeRO stage may run on a GPU; what works in host memory alone is refused with what to use instead") {
  for (const char* const layout : {"dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3"}) {
    CHECK(refusal(layout, "cpu") == "");
    CHECK(refusal(layout, "cuda") == "");
  }
  CHECK(refusal("dp=2,compress=int8", "cpu") == "");
  CHECK(refusal("dp=2,compress=int8", "cuda").find("use compress=none, or --device cpu") != std::string::npos);
  CHECK(refusal("pp=2,zero=1", "cuda").find("with pp is not supported") != std::string::npos);
}

TEST_CASE("epochs that end between two exchanges say to how many steps they are rounded up") {
  const auto sentence = [](const std::string& layout, double epochs, int64_t steps) {
    Config config;
    config.global_batch = 10, config.epochs = epochs, config.steps = steps;
    return rounded_steps_sentence(resolve(config, parse_layout(layout, 2)), 100);
  };
  CHECK(sentence("dp=2,sync=local:4", 1, 0) ==
        "--epochs 1 are 10 steps, and with --layout sync=local:4 a run ends with an exchange: it has 12");
  CHECK(sentence("dp=2,sync=local:4", 0, 0) ==
        "--epochs 1 are 10 steps, and with --layout sync=local:4 a run ends with an exchange: it has 12");
  CHECK(sentence("dp=2,sync=diloco:5", 1, 0) == "");
  CHECK(sentence("dp=2,sync=local:4", 0, 8) == "");
  CHECK(sentence("dp", 0.5, 0) == "");
}

TEST_CASE("a batch has a sample for every piece that it is cut into") {
  const auto refusal_of = [](int64_t batch, int accumulate, const std::string& layout, int num_ranks,
                             const std::string& shares) -> std::string {
    Config config;
    config.model = "fc", config.global_batch = batch, config.accumulate = accumulate, config.shares = shares;
    try {
      check_run(resolve(config, parse_layout(layout, num_ranks)), is_text_data(config.data));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  };
  CHECK(refusal_of(16, 8, "dp", 2, "equal") == "");
  CHECK(refusal_of(16, 9, "dp", 2, "equal") ==
        "--accumulate 9 cuts --global-batch 16 into 18 pieces (9 for each of 2 shares), more than it has samples; use fewer pieces, or "
        "--global-batch 18 or more");
  {
    const MemberNames members;
    CHECK(refusal_of(16, 9, "dp", 2, "equal") ==
          "accumulate 9 cuts global_batch 16 into 18 pieces (9 for each of 2 shares), more than it has samples; use fewer pieces, or "
          "global_batch 18 or more");
  }
  CHECK(refusal_of(8, 9, "dp", 1, "equal").find("--accumulate 9 cuts --global-batch 8 into 9 pieces, more") == 0);
  CHECK(refusal_of(8, 1, "pp=2,microbatches=9", 2, "equal").find("--layout microbatches=9 cuts --global-batch 8 into 9") == 0);
  CHECK(refusal_of(16, 2, "dp=2,pp=2,microbatches=5", 4, "equal").find("--accumulate 2 with --layout microbatches=5 cuts") == 0);
  CHECK(refusal_of(16, 9, "dp", 2, "3:1") == "");  // Such shares are taken as they come.
  CHECK(refusal_of(16, 17, "dp", 2, "3:1").find("into 17 pieces, more") != std::string::npos);
}

TEST_CASE("a model without a parameter that trains is refused, and a goal that its output cannot reach") {
  Config config;
  config.model = "mine", config.goal = "val_error<0.1";
  const DataSet data = open_data("synthetic:1x4x4,classes=4,samples=64");
  LayerGraph model;
  model.set_title("model mine");
  const auto refusal_of = [](const std::function<void()>& check) -> std::string {
    try {
      check();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  };
  const auto of_model = [&] { return refusal_of([&] { check_model(config, parse_layout("dp", 1), model); }); };
  model.add("flatten", "flatten", [](const LayerGraph::Inputs& in) { return in[0].flatten(1); });
  CHECK(of_model().find("model mine has no parameters, so there is nothing to train; register") == 0);
  const torch::nn::Linear linear(16, 4);
  model.add("output", "linear", linear);
  CHECK(of_model() == "");
  linear->weight.set_requires_grad(false);
  CHECK(of_model() == "");
  linear->bias.set_requires_grad(false);
  CHECK(of_model().find("model mine has no parameter that trains: output.weight and all others of its 2 are frozen; call") == 0);

  LayerGraph waves;
  waves.set_title("model waves");
  torch::nn::Linear wave(16, 4);
  wave->register_buffer("angles", at::zeros({2}, at::kComplexFloat));
  waves.add("output", "linear", wave);
  CHECK(refusal_of([&] { check_model(config, parse_layout("dp", 1), waves); }) ==
        "model waves: the buffer output.angles is (2) complex64, which no checkpoint could hold; keep it as real numbers "
        "(torch::view_as_real)");

  const auto of_goal = [&] { return refusal_of([&] { check_goal(resolve(config, 1), model, *data.validation); }); };
  CHECK(of_goal() == "");
  model.set_loss([](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  CHECK(of_goal() == "");
  model.add("mean", "mean", [](const LayerGraph::Inputs& in) { return in[0].mean(1); });
  CHECK(of_goal().find("--goal val_error<0.1: the output of mine does not have class scores") == 0);
  CHECK(model.is_training());
  config.goal = "val_loss<0.1";
  CHECK(of_goal() == "");
}

}  // namespace
}  // namespace cohort
