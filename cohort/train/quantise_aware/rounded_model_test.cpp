#include "cohort/train/quantise_aware/rounded_model.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/models/registry.h"
#include "cohort/train/quantise_aware/rounding.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

const DataShape kPictures{DataShape::Kind::kImage, {1, 12, 12}, 4, {}};
const DataShape kText{DataShape::Kind::kText, {8}, 256, {}};

std::map<std::string, at::Tensor> copies(const LayerGraph& model) {
  std::map<std::string, at::Tensor> out;
  for (const auto& parameter : model.named_parameters()) out[parameter.key()] = parameter.value().detach().clone();
  return out;
}

at::Tensor input_of(const DataShape& shape) {
  if (shape.kind == DataShape::Kind::kText) return at::randint(256, {3, 8}, at::kLong);
  return at::randn({3, 1, 12, 12}, at::kFloat);
}

TEST_CASE("rounded model: forward and gradients are those of the rounded weights, which are not kept") {
  at::manual_seed(1);
  struct Case {
    const char* model;
    DataShape shape;
  };
  // 4 bits: inputs stay as they are, so that a plain model with rounded weights is the reference.
  for (const Case& one : {Case{"cnn:conv1=4,conv2=8,hidden=16", kPictures}, Case{"lstm:width=8,hidden=16", kText},
                          Case{"transformer:layers=1,width=16", kText}}) {
    CAPTURE(one.model);
    const QuantiseAware how{.bits = 4, .group = 8};
    const auto model = build_model(one.model, one.shape, 7), plain = build_model(one.model, one.shape, 7);
    const auto before = copies(*model);
    const RoundedModel found = round_while_training(*model, how);
    CHECK(found.left.empty());
    CHECK(found.with_input.empty());
    {
      at::NoGradGuard no_grad;
      for (const auto& parameter : plain->named_parameters())
        for (const std::string& name : found.tensors)
          if (parameter.key() == name) parameter.value().copy_(rounded_weight(parameter.value(), how));
    }
    const at::Tensor input = input_of(one.shape);
    model->train();
    plain->train();
    const at::Tensor output = model->forward(input), wanted = plain->forward(input);
    CHECK(at::equal(output, wanted));
    output.pow(2).sum().backward();
    wanted.pow(2).sum().backward();
    const auto exact = plain->named_parameters();
    for (const auto& parameter : model->named_parameters()) {
      CAPTURE(parameter.key());
      CHECK(at::equal(parameter.value().grad(), exact[parameter.key()].grad()));
      CHECK(at::equal(parameter.value(), before.at(parameter.key())));
    }
    model->eval();
    const auto untouched = build_model(one.model, one.shape, 7);
    untouched->eval();
    CHECK(at::equal(model->forward(input), untouched->forward(input)));
    CHECK(!at::equal(model->forward(input), output));
  }
}

TEST_CASE("rounded model: 8 bits round weights and the inputs of what int8 kernels know; the rest is named") {
  at::manual_seed(2);
  const auto cnn = build_model("cnn:conv1=4,conv2=8,hidden=16", kPictures, 1);
  const RoundedModel found = round_while_training(*cnn, {.bits = 8, .group = 0});
  CHECK(found.tensors == std::vector<std::string>{"conv1.weight", "conv2.weight", "hidden.weight", "output.weight"});
  CHECK(found.with_input == std::vector<std::string>{"conv1", "conv2", "hidden", "output"});
  CHECK(describe_rounding("8", found) == "quantize-aware 8: 4 tensors and the inputs of 4 layers are rounded while it trains");

  const auto lstm = build_model("lstm:width=8,hidden=16", kText, 1);
  const RoundedModel recurrent = round_while_training(*lstm, {.bits = 8, .group = 0});
  CHECK(recurrent.tensors == std::vector<std::string>{"embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "output.weight"});
  CHECK(recurrent.with_input == std::vector<std::string>{"output"});
  CHECK(recurrent.left.empty());

  // An output layer that reads the embedding's table computes with it exactly, so the embedding does too.
  const auto tied = build_model("transformer:layers=1,width=16,tied=1", kText, 1);
  const RoundedModel shared = round_while_training(*tied, {.bits = 4, .group = 8});
  REQUIRE(shared.left.size() == 1);
  CHECK(shared.left[0].find("token.weight (of a module of another kind)") != std::string::npos);
}

TEST_CASE("rounded model: a forward that fails leaves the exact weights, and a model without one is refused") {
  LayerGraph model;
  torch::nn::Linear linear(4, 4);
  bool fails = false;
  model.add_layer("one", "linear", linear.ptr(),
                  [linear, &fails](const LayerGraph::Inputs& in) mutable {
                    if (fails) throw std::runtime_error("no");
                    return linear->forward(in[0]);
                  },
                  {});
  const at::Tensor exact = linear->weight;
  round_while_training(model, {.bits = 8, .group = 0});
  fails = true;
  CHECK_THROWS(model.forward(at::ones({2, 4}, at::kFloat)));
  CHECK(linear->weight.is_same(exact));

  LayerGraph empty;
  empty.add("twice", "other", [](const LayerGraph::Inputs& in) { return in[0]; });
  CHECK(error_of([&] { round_while_training(empty, {.bits = 8, .group = 0}); }).find("no weight to round") != std::string::npos);
}

}  // namespace
}  // namespace cohort
