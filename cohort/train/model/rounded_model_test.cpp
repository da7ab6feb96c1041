#include "cohort/train/model/rounded_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohort/models/registry.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::TensorOptions(at::kFloat)); }

/// The plain statement of what a row (or group) is rounded to.
std::vector<float> plainly_rounded(const float* row, int64_t count, int64_t largest) {
  float top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, std::abs(row[i]));
  const float scale = top > 0 ? top / static_cast<float>(largest) : 1;
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(scale * std::nearbyint(row[i] / scale));
  return out;
}

TEST_CASE("rounding: weights are the nearest of 2 L + 1 numbers of their row or group") {
  at::manual_seed(3);
  const at::Tensor matrix = numbers({5, 70}), kernel = numbers({4, 3, 3, 3});
  matrix[2].zero_();
  for (const at::Tensor& weight : {matrix, kernel})
    for (const QuantiseAware how : {QuantiseAware{8, 0}, QuantiseAware{4, 0}, QuantiseAware{4, 8}, QuantiseAware{4, 64}}) {
      const int64_t rows = weight.size(0), columns = weight.numel() / rows, largest = how.bits == 8 ? 127 : 7;
      const int64_t width = how.group == 0 ? columns : how.group;
      const at::Tensor rounded = rounded_weight(weight, how);
      REQUIRE(rounded.sizes() == weight.sizes());
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t first = 0; first < columns; first += width) {
          const int64_t count = std::min(width, columns - first);
          const float* const exact = weight.const_data_ptr<float>() + row * columns + first;
          const float* const found = rounded.const_data_ptr<float>() + row * columns + first;
          const std::vector<float> wanted = plainly_rounded(exact, count, largest);
          std::set<float> levels(found, found + count);
          CHECK(static_cast<int64_t>(levels.size()) <= 2 * largest + 1);
          float top = 0;
          for (int64_t i = 0; i < count; ++i) top = std::max(top, std::abs(exact[i]));
          // A number halfway between two may be rounded to either.
          for (int64_t i = 0; i < count; ++i)
            CHECK((std::abs(found[i] - wanted[static_cast<size_t>(i)]) <= 1e-6F * top ||
                   std::abs(found[i] - exact[i]) <= 0.5001F * top / static_cast<float>(largest)));
        }
    }
}

TEST_CASE("rounding: a sample is rounded alone, zero stays zero, and no number moves by more than half a step") {
  at::manual_seed(4);
  const at::Tensor samples = at::cat({numbers({3, 2, 4, 4}), numbers({2, 2, 4, 4}).relu(), at::zeros({1, 2, 4, 4}, at::kFloat)});
  samples[0][0][0][0] = 0;
  const at::Tensor rounded = rounded_samples(samples);
  for (int64_t i = 0; i < samples.size(0); ++i) {
    CHECK(at::equal(rounded_samples(samples.narrow(0, i, 1)), rounded.narrow(0, i, 1)));
    const double step = (samples[i].max().clamp_min(0) - samples[i].min().clamp_max(0)).item<double>() / 127;
    // The zero point is rounded too: at one end half a step more.
    CHECK((rounded[i] - samples[i]).abs().max().item<double>() <= 1.0001 * step);
    CHECK((rounded[i] - samples[i]).abs().median().item<double>() <= 0.5001 * step);
  }
  CHECK(rounded[0][0][0][0].item<float>() == 0);
  CHECK(!at::equal(rounded.narrow(0, 0, 5), samples.narrow(0, 0, 5)));
  CHECK(at::equal(rounded[5], samples[5]));
  CHECK(rounded_samples(at::zeros({0, 3}, at::kFloat)).numel() == 0);
}

TEST_CASE("rounding: the gradient is that of the rounded numbers, and numbers that are not finite stay visible") {
  at::manual_seed(5);
  const at::Tensor weight = numbers({3, 10}).requires_grad_(true), samples = numbers({3, 10}).requires_grad_(true),
                   factor = numbers({3, 10});
  (rounded_weight(weight, {4, 4}) * factor).sum().backward();
  CHECK(at::equal(weight.grad(), factor));
  (rounded_samples(samples) * factor).sum().backward();
  CHECK((samples.grad() == factor).sum().item<int64_t>() >= 27);  // One number of a sample may be cut off.
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(!rounded_samples(at::full({2, 3}, bad, at::kFloat)).isfinite().all().item<bool>());
    CHECK(!rounded_weight(at::full({2, 3}, bad, at::kFloat), {8, 0}).isfinite().all().item<bool>());
  }
}

}  // namespace

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
