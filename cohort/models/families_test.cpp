// What every built-in family must do, and the numbers of parameters that are known from the literature.

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <set>
#include <string>
#include <vector>

#include "cohort/models/graph/step_context.h"
#include "cohort/models/registry.h"
#include "tests/support/threads.h"

namespace {

using cohort::build_model;
using cohort::DataShape;
using cohort::LayerGraph;

const DataShape kMnist{DataShape::Kind::kImage, {1, 28, 28}, 10, {}};
const DataShape kCifar{DataShape::Kind::kImage, {3, 32, 32}, 10, {}};
const DataShape kTiny{DataShape::Kind::kImage, {2, 8, 9}, 5, {}};
const DataShape kImageNet{DataShape::Kind::kImage, {3, 224, 224}, 1000, {}};
const DataShape kText{DataShape::Kind::kText, {12}, 256, {}};
const DataShape kBenchText{DataShape::Kind::kText, {128}, 256, {}};

at::Tensor input_of(const DataShape& data, int64_t samples) {
  torch::manual_seed(21);
  if (data.kind == DataShape::Kind::kText) return at::randint(data.num_classes, {samples, data.input[0]}, at::kLong);
  return at::randn({samples, data.input[0], data.input[1], data.input[2]});
}

int64_t num_parameters(const LayerGraph& graph) {
  int64_t total = 0;
  std::set<const void*> seen;  // a tied parameter has two names
  for (const auto& parameter : graph.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) total += parameter.numel();
  }
  return total;
}

int64_t count(const std::string& specification, const DataShape& data) { return num_parameters(*build_model(specification, data, 0)); }

std::vector<std::string> names_and_kinds(const LayerGraph& graph) {
  std::vector<std::string> result;
  for (const auto& layer : graph.layers()) result.push_back(layer.name + " " + layer.kind);
  return result;
}

std::vector<std::string> edges(const LayerGraph& graph) {
  std::vector<std::string> result;
  for (const auto& layer : graph.layers()) {
    std::string text = layer.name + " <-";
    for (const int input : layer.inputs) {
      text += " " + (input < 0 ? std::string("input") : graph.layers()[static_cast<size_t>(input)].name);
    }
    result.push_back(text);
  }
  return result;
}

struct Case {
  const char* specification;
  const DataShape& data;
};
const std::vector<Case> kCases = {
    {"fc:hidden=16,layers=3", kMnist},
    {"fc:layers=0", kTiny},
    {"cnn:conv1=4,conv2=6,hidden=16", kMnist},
    {"cnn:width=0.1", kCifar},
    {"cnn:width=0.1", kTiny},
    {"resnet8:width=4", kCifar},
    {"resnet8:width=4", kMnist},
    {"resnet8:width=3", kTiny},
    {"resnet50:width=4,blocks=1-2,ghost=4", kCifar},
    {"resnet50:width=4,blocks=1-1-1-1,norm=batch", kMnist},
    {"resnet50:width=4,blocks=2-1,norm=group", kTiny},
    {"resnet50:width=4,blocks=1-1,stem=imagenet", kCifar},
    {"vgg11:width=4,hidden=16", kCifar},
    {"vgg11:width=4,hidden=16,dropout=0.2", kMnist},
    {"vgg11:width=4,hidden=16,norm=ghost,ghost=3", kTiny},
    {"inception:width=8", kCifar},
    {"inception:width=5,blocks=6,norm=ghost,ghost=3", kTiny},
    {"inception:width=4,blocks=1,norm=group", kMnist},
    {"lstm:width=8,hidden=16", kText},
    {"lstm:width=8,hidden=16,dropout=0.2", kText},
    {"transformer:width=16", kText},
    {"transformer:layers=1,width=12,heads=3,ff=20,dropout=0.1,tied=1", kText},
    {"mlp-small", kMnist},
    {"mlp:width=16", kTiny},
    {"cnn-bench", kTiny},
    {"gpt:layers=2,width=16,heads=2", kText},
};

TEST_CASE("every family: shape of the logits, a gradient for every parameter, the same weights from the same seed") {
  std::set<std::string> covered;
  for (const Case& c : kCases) {
    INFO(std::string(c.specification));
    const std::string specification = c.specification;
    covered.insert(specification.substr(0, specification.find(':')));
    const auto graph = build_model(specification, c.data, 5);
    const int64_t samples = 6;
    std::vector<int64_t> shape{samples, c.data.num_classes};
    if (c.data.kind == DataShape::Kind::kText) shape.insert(shape.begin() + 1, c.data.input[0]);
    {
      const cohort::StepContextScope scope({1, 0, 0});
      const at::Tensor logits = graph->forward(input_of(c.data, samples));
      REQUIRE(logits.sizes() == at::IntArrayRef(shape));
      const at::Tensor flat = logits.reshape({-1, c.data.num_classes});
      at::cross_entropy_loss(flat, at::randint(c.data.num_classes, {flat.size(0)}, at::kLong)).backward();
    }
    for (const auto& parameter : graph->named_parameters()) {
      INFO(parameter.key());
      REQUIRE(parameter.value().grad().defined());
      CHECK(parameter.value().grad().isfinite().all().item<bool>());
      CHECK(parameter.value().grad().abs().max().item<double>() > 0);
    }
    const auto same = build_model(specification, c.data, 5)->parameters(), other = build_model(specification, c.data, 6)->parameters();
    bool differs = false;
    for (size_t i = 0; i < same.size(); ++i) {
      CHECK(at::equal(graph->parameters()[i], same[i]));
      differs = differs || !at::equal(same[i], other[i]);
    }
    CHECK(differs);
  }
  for (const char* name :
       {"fc", "cnn", "resnet8", "resnet50", "vgg11", "inception", "lstm", "transformer", "mlp-small", "mlp", "cnn-bench", "gpt"}) {
    CHECK(covered.count(name) == 1);
    CHECK_FALSE(cohort::registered_models().at(name).help.empty());
  }
}

TEST_CASE("evaluation does not depend on the other samples of the batch") {
  for (const Case& c : kCases) {
    INFO(std::string(c.specification));
    const auto graph = build_model(c.specification, c.data, 5);
    graph->eval();
    const at::Tensor x = input_of(c.data, 3);
    CHECK(at::allclose(graph->forward(x)[1], graph->forward(x.narrow(0, 1, 1))[0], 1e-3, 1e-4));
  }
}

TEST_CASE("numbers of parameters") {
  CHECK(count("fc", kMnist) == 814090);  // 784 x 1024 + 1024 + 1024 x 10 + 10
  CHECK(count("fc:hidden=64,layers=3", kMnist) == 59210);
  CHECK(count("cnn", kMnist) == 3274634);    // 832 + 51264 + 3136 x 1024 + 1024 + 10250
  CHECK(count("resnet8", kCifar) == 75050);  // 448 + 2 x 2320 + (4640 + 9248) + (18496 + 36928) + 650
  CHECK(count("inception:blocks=1", kMnist) ==
        48 * 10 + (48 * 16 + 16) + (48 * 24 + 24 + 24 * 9 * 32 + 32) + (48 * 4 + 4 + 4 * 25 * 8 + 8) + (48 * 8 + 8) + 65 * 10);
  // Module 3a of the paper's table 1: 159 K weights, which are these 163,328, and as many biases as it has channels.
  CHECK(count("inception:width=64,blocks=1", kMnist) == 192 * 10 + 163328 + (256 + 96 + 16) + 257 * 10);
  CHECK(count("mlp-small", kMnist) == 118282);
  CHECK(count("mlp", kMnist) == 1863690);
  CHECK(count("cnn-bench", kMnist) == 3241354);
  CHECK(count("gpt", kBenchText) == 3323392);
  CHECK(count("lstm:width=16,hidden=32", kText) == 256 * 16 + 4 * 32 * (16 + 32 + 2) + 33 * 256);
  const int64_t block = 4 * 64 + 3 * 64 * 65 + 64 * 65 + 64 * 256 + 256 + 256 * 64 + 64;
  CHECK(count("transformer", kText) == 256 * 64 + 12 * 64 + 2 * block + 2 * 64 + 64 * 256);
  CHECK(count("transformer:tied=1", kText) == 256 * 64 + 12 * 64 + 2 * block + 2 * 64);
  CHECK(count("resnet50:norm=batch", kImageNet) == 25557032);  // as torchvision counts it
  CHECK(count("resnet50:norm=ghost", kImageNet) == 25557032);
  CHECK(count("vgg11", kImageNet) == 132863336);  // likewise
}

TEST_CASE("resnet8: names, kinds and edges are fixed") {
  const auto graph = build_model("resnet8", kCifar, 0);
  CHECK(graph->named_parameters().keys() == std::vector<std::string>{"stem.weight", "stem.bias", "block1_conv1.weight", "block1_conv1.bias",
                                                                     "block1_conv2.weight", "block1_conv2.bias", "block2_conv1.weight",
                                                                     "block2_conv1.bias", "block2_conv2.weight", "block2_conv2.bias",
                                                                     "block3_conv1.weight", "block3_conv1.bias", "block3_conv2.weight",
                                                                     "block3_conv2.bias", "output.weight", "output.bias"});
  CHECK(edges(*graph) == std::vector<std::string>{"stem <- input",
                                                  "block1_relu1 <- stem",
                                                  "block1_conv1 <- block1_relu1",
                                                  "block1_relu2 <- block1_conv1",
                                                  "block1_conv2 <- block1_relu2",
                                                  "block1_add <- stem block1_conv2",
                                                  "block2_shortcut <- block1_add",
                                                  "block2_relu1 <- block1_add",
                                                  "block2_conv1 <- block2_relu1",
                                                  "block2_relu2 <- block2_conv1",
                                                  "block2_conv2 <- block2_relu2",
                                                  "block2_add <- block2_shortcut block2_conv2",
                                                  "block3_shortcut <- block2_add",
                                                  "block3_relu1 <- block2_add",
                                                  "block3_conv1 <- block3_relu1",
                                                  "block3_relu2 <- block3_conv1",
                                                  "block3_conv2 <- block3_relu2",
                                                  "block3_add <- block3_shortcut block3_conv2",
                                                  "relu <- block3_add",
                                                  "mean <- relu",
                                                  "output <- mean"});
}

TEST_CASE("resnet50: sixteen blocks of ten or twelve layers, a stem by the size of the picture, granularity by the norm") {
  const auto small = build_model("resnet50:width=1", kCifar, 0);
  CHECK(small->layers().size() == 3 + 16 * 10 + 4 * 2 + 2);
  CHECK(small->layers()[0].module->named_parameters()["weight"].size(2) == 3);
  CHECK(small->sample_granularity() == 32);
  const auto large = build_model("resnet50:width=1,norm=batch", kImageNet, 0);
  CHECK(large->layers().size() == small->layers().size() + 1);
  CHECK(large->layers()[0].module->named_parameters()["weight"].size(2) == 7);
  CHECK(large->layers()[3].name == "stem_pool");
  CHECK(large->sample_granularity() == LayerGraph::kWholeBatch);
  CHECK(build_model("resnet50:width=1,ghost=8", kCifar, 0)->sample_granularity() == 8);
  CHECK(build_model("resnet50:width=1,norm=group", kCifar, 0)->sample_granularity() == 1);
  CHECK(build_model("resnet8", kCifar, 0)->sample_granularity() == 1);
}

TEST_CASE("resnet50 without normalisation starts as its shortcuts alone, so the signal keeps its size") {
  const auto graph = build_model("resnet50:width=4,norm=none", kCifar, 0);
  const at::Tensor logits = graph->forward(input_of(kCifar, 4));
  CHECK(logits.abs().max().item<double>() > 1e-3);
  CHECK(logits.abs().max().item<double>() < 1e3);
}

TEST_CASE("vgg11 stops pooling once a side is one pixel") {
  const auto pools = [](const DataShape& data) {
    int64_t result = 0;
    const auto graph = build_model("vgg11:width=1,hidden=2", data, 0);
    for (const auto& layer : graph->layers()) result += layer.kind == "maxpool2d" ? 1 : 0;
    return result;
  };
  CHECK(pools(kCifar) == 5);
  CHECK(pools(kMnist) == 4);
  CHECK(pools(kTiny) == 3);
}

TEST_CASE("inception: four branches of one input meet in the join, in the paper's order") {
  const auto graph = build_model("inception:width=64,blocks=1", kCifar, 0);
  CHECK(edges(*graph) ==
        std::vector<std::string>{
            "stem_conv <- input", "stem_relu <- stem_conv", "stem_pool <- stem_relu", "block1_1x1_conv <- stem_pool",
            "block1_1x1_relu <- block1_1x1_conv", "block1_3x3_reduce_conv <- stem_pool", "block1_3x3_reduce_relu <- block1_3x3_reduce_conv",
            "block1_3x3_conv <- block1_3x3_reduce_relu", "block1_3x3_relu <- block1_3x3_conv", "block1_5x5_reduce_conv <- stem_pool",
            "block1_5x5_reduce_relu <- block1_5x5_reduce_conv", "block1_5x5_conv <- block1_5x5_reduce_relu",
            "block1_5x5_relu <- block1_5x5_conv", "block1_pool <- stem_pool", "block1_pool_conv <- block1_pool",
            "block1_pool_relu <- block1_pool_conv", "block1_join <- block1_1x1_relu block1_3x3_relu block1_5x5_relu block1_pool_relu",
            "mean <- block1_join", "output <- mean"});
  CHECK(graph->sample_granularity() == 1);
  CHECK(build_model("inception:norm=ghost,ghost=8", kCifar, 0)->sample_granularity() == 8);
}

TEST_CASE("inception: a pool after each second module, as long as there is something to pool") {
  const auto pools = [](const std::string& blocks, const DataShape& data) {
    std::string result;
    const auto graph = build_model("inception:width=2,blocks=" + blocks, data, 0);
    for (const auto& layer : graph->layers()) {
      if (layer.name.starts_with("pool")) result += layer.name + " ";
    }
    return result;
  };
  CHECK(pools("2", kCifar) == "");
  CHECK(pools("3", kCifar) == "pool1 ");
  CHECK(pools("9", kCifar) == "pool1 pool2 pool3 pool4 ");
  CHECK(pools("9", kTiny) == "pool1 pool2 ");  // 8 x 9 -> 4 x 4 -> 2 x 2 -> 1 x 1
}

TEST_CASE("inception learns: every branch helps to tell eight pictures apart") {
  const auto graph = build_model("inception:width=8", kTiny, 3);
  const at::Tensor x = input_of(kTiny, 8), labels = at::randint(kTiny.num_classes, {8}, at::kLong);
  const auto loss = [&] { return at::cross_entropy_loss(graph->forward(x), labels); };
  const double before = loss().item<double>();
  for (int step = 0; step < 60; ++step) {
    graph->zero_grad();
    loss().backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : graph->parameters()) parameter.add_(parameter.grad(), -0.05);
  }
  CHECK(loss().item<double>() < 0.3 * before);
}

TEST_CASE("tied output and byte table are one parameter under two names") {
  const auto graph = build_model("transformer:tied=1", kText, 0);
  const auto parameters = graph->named_parameters();
  CHECK(parameters["embedding.token.weight"].is_same(parameters["output.weight"]));
  graph->to(at::kDouble);
  CHECK(graph->named_parameters()["embedding.token.weight"].is_same(graph->named_parameters()["output.weight"]));
  const auto untied = build_model("transformer", kText, 0)->named_parameters();
  CHECK_FALSE(untied["embedding.token.weight"].is_same(untied["output.weight"]));
}

TEST_CASE("dropout layers of one model have masks of their own, whatever the split") {
  const auto graph = build_model("transformer:dropout=0.5,layers=2", kText, 0);
  const at::Tensor x = input_of(kText, 6);
  const auto run = [&](int64_t begin, int64_t size, int64_t step) {
    const cohort::StepContextScope scope({3, step, begin});
    return graph->forward(x.narrow(0, begin, size));
  };
  const at::Tensor whole = run(0, 6, 0);
  CHECK(at::allclose(at::cat({run(0, 2, 0), run(2, 4, 0)}), whole, 1e-4, 1e-5));
  CHECK_FALSE(at::allclose(run(0, 6, 1), whole, 1e-2, 1e-2));
}

TEST_CASE("the benchmark's models have the layers of the usual scripts, at their places") {
  CHECK(names_and_kinds(*build_model("mlp", kMnist, 0)) ==
        std::vector<std::string>{"0 flatten", "1 linear", "2 relu", "3 linear", "4 relu", "5 linear"});
  CHECK(names_and_kinds(*build_model("cnn-bench", kMnist, 0)) == std::vector<std::string>{"0 conv2d", "1 relu", "2 maxpool2d", "3 conv2d",
                                                                                          "4 relu", "5 maxpool2d", "6 flatten", "7 linear",
                                                                                          "8 relu", "9 linear"});
  const auto gpt = build_model("gpt", kBenchText, 0);
  CHECK(names_and_kinds(*gpt) == std::vector<std::string>{"0 embedding", "1 transformerblock", "2 transformerblock", "3 transformerblock",
                                                          "4 transformerblock", "5 layernorm", "6 linear"});
  const auto parameters = gpt->named_parameters();
  CHECK(parameters["0.token.weight"].sizes() == at::IntArrayRef({256, 256}));
  CHECK(parameters["0.position.weight"].sizes() == at::IntArrayRef({128, 256}));
  CHECK(parameters["4.qkv.weight"].sizes() == at::IntArrayRef({768, 256}));
  CHECK(parameters["4.up.weight"].sizes() == at::IntArrayRef({1024, 256}));
  CHECK(parameters["6.weight"].sizes() == at::IntArrayRef({256, 256}));
  CHECK(parameters.find("6.bias") == nullptr);
}

}  // namespace
