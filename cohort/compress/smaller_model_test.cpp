#include "cohort/compress/smaller_model.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <map>
#include <string>

#include "cohort/models/registry.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

const DataShape kPictures{DataShape::Kind::kImage, {2, 16, 16}, 5, {}};

std::shared_ptr<LayerGraph> built(const std::string& specification, uint64_t seed) {
  std::shared_ptr<LayerGraph> model = build_model(specification, kPictures, seed);
  model->eval();
  return model;
}

/// Parameters and buffers by name.
std::map<std::string, at::Tensor> tensors_of(const LayerGraph& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : model.named_parameters()) tensors[parameter.key()] = parameter.value().detach();
  for (const auto& buffer : model.named_buffers()) tensors[buffer.key()] = buffer.value();
  return tensors;
}

TEST_CASE("channels of zeros are removed: the smaller model gives the outputs of the whole one") {
  const at::NoGradGuard no_grad;
  torch::manual_seed(9);
  for (const char* specification :
       {"fc:hidden=12,layers=3", "cnn:conv1=6,conv2=8,hidden=10", "cnn:width=0.25", "resnet8:width=8", "vgg11:width=4,hidden=12",
        "vgg11:width=4,hidden=12,norm=batch", "vgg11:width=4,hidden=12,norm=ghost,ghost=2"}) {
    CAPTURE(specification);
    const auto model = built(specification, 3);
    const std::string smaller_name = smaller_specification(specification, *model, 0.5);
    const auto smaller = built(smaller_name, 4);
    // Every other channel of whatever makes channels is made zero, of the answer's layer none. In a resnet8 the channels of a sum are those
    // of its shortcut and, behind them, new ones: every other one of all is every other one of both.
    for (const LayerGraph::Layer& layer : model->layers()) {
      if (!layer.module || &layer == &model->layers().back()) continue;
      for (const auto& parameter : layer.module->named_parameters())
        for (int64_t channel = 0; channel < parameter.value().size(0); channel += 2) parameter.value()[channel].zero_();
      for (const auto& buffer : layer.module->named_buffers())
        if (buffer.key() == "running_mean") buffer.value().copy_(at::randn(buffer.value().sizes()));
    }
    // With statistics that are not zero a norm of a zero channel gives its shift alone, which is zero too.
    const at::Tensor input = at::randn({4, 2, 16, 16});
    take_channels(*model, *smaller, input);
    const at::Tensor wanted = model->forward(input), found = smaller->forward(input);
    CHECK(wanted.abs().max().item<double>() > 0);
    CHECK(at::allclose(found, wanted, 1e-4, 1e-5));
    int64_t before = 0, after = 0;
    for (const at::Tensor& parameter : model->parameters()) before += parameter.numel();
    for (const at::Tensor& parameter : smaller->parameters()) after += parameter.numel();
    CHECK(after < 0.6 * static_cast<double>(before));
  }
}

TEST_CASE("filters are ranked by their norm, times their batch norm's factor") {
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::randn({2, 2, 16, 16});
  const std::string specification = "vgg11:width=4,hidden=8,norm=batch";
  const auto model = built(specification, 3);
  auto tensors = tensors_of(*model);
  tensors["norm1.weight"][0] = 100.0;  // gamma
  tensors["norm1.running_var"][1] = 1e8;
  const auto smaller = built(smaller_specification(specification, *model, 0.75), 4);  // One channel of four.
  take_channels(*model, *smaller, input);
  CHECK(at::allclose(tensors_of(*smaller)["norm1.weight"], tensors["norm1.weight"].narrow(0, 0, 1)));
  const auto half = built(smaller_specification(specification, *model, 0.25), 4);  // Three of four: the second is removed.
  take_channels(*model, *half, input);
  CHECK(tensors_of(*half)["norm1.running_var"].max().item<double>() < 1e6);
}

TEST_CASE("specifications") {
  const auto smaller = [](const std::string& specification, double sparsity) {
    return smaller_specification(specification, *built(specification, 1), sparsity);
  };
  CHECK(smaller("cnn", 0.5) == "cnn:conv1=16,conv2=32,hidden=512");
  CHECK(smaller("cnn:width=0.5", 0.5) == "cnn:conv1=8,conv2=16,hidden=256");
  CHECK(smaller("resnet8:width=16", 0.25) == "resnet8:width=12");
  CHECK(smaller("fc:hidden=10,layers=2", 0.9) == "fc:hidden=1,layers=2");
  CHECK(smaller("vgg11:width=4,hidden=8,norm=batch", 0.5) == "vgg11:hidden=4,norm=batch,width=2");
  CHECK(error_of([&] { smaller("inception:width=8", 0.5); }).find("those of cnn, fc, resnet8, vgg11 can") != std::string::npos);
  CHECK(error_of([&] { smaller("vgg11:width=4,hidden=8,norm=group", 0.5); }).find("norm=group") != std::string::npos);
  CHECK(error_of([&] { smaller("fc:layers=0", 0.5); }).find("no channel") != std::string::npos);
  CHECK(error_of([&] { smaller("fc:hidden=2", 0.1); }).find("no channel") != std::string::npos);
}

TEST_CASE("every width that the options can say is reached") {
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::randn({2, 2, 16, 16});
  for (const double sparsity : {0.1, 0.3, 0.45, 0.7, 0.95})
    for (const char* specification : {"resnet8:width=7", "cnn:conv1=5,conv2=7,hidden=9", "vgg11:width=5,hidden=7"}) {
      CAPTURE(sparsity);
      CAPTURE(specification);
      const auto model = built(specification, 3);
      const auto smaller = built(smaller_specification(specification, *model, sparsity), 4);
      take_channels(*model, *smaller, input);
      CHECK(smaller->forward(input).isfinite().all().item<bool>());
    }
}

}  // namespace

}  // namespace cohort
