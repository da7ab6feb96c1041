#include "cohort/models/registry.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace {

using cohort::build_model;
using cohort::DataShape;
using cohort::LayerGraph;
using cohort::ModelOptions;

const DataShape kPictures{DataShape::Kind::kImage, {1, 28, 28}, 10, {}};
const DataShape kText{DataShape::Kind::kText, {16}, 256, {}};

/// The message of the Error(kBadInput) that `action` must throw.
template <typename Action>
std::string refused(Action action) {
  try {
    action();
  } catch (const cohort::Error& error) {
    CHECK(error.code() == cohort::ErrorCode::kBadInput);
    const std::string text = error.what();
    CHECK(text.find('\n') == std::string::npos);
    return text;
  }
  FAIL("nothing was thrown");
  return "";
}

std::string refused_model(const std::string& specification, const DataShape& data = kPictures) {
  return refused([&] { build_model(specification, data, 0); });
}

bool holds(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

COHORT_MODEL("registry-test", [](const ModelOptions& options) {
  const int64_t width = options.integer("width", 8);
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::ReLU(), torch::nn::Linear(width, options.data().num_classes));
});

TEST_CASE("edit distance and the nearest name") {
  CHECK(cohort::nearest_name("resnet5", {"resnet8", "resnet50", "vgg11"}) == "resnet8");
  CHECK(cohort::nearest_name("wdth", {"hidden", "width"}) == "width");
  CHECK(cohort::nearest_name("bert", {"resnet8", "gpt", "lstm"}).empty());
  CHECK(cohort::did_you_mean("x", {}).empty());
}

TEST_CASE("an unknown model is refused with the nearest name and the list") {
  const std::string text = refused_model("transfomer");
  CHECK(holds(text, "there is no model 'transfomer' (did you mean 'transformer'?); models: "));
  CHECK(holds(text, " cnn cnn-bench fc gpt inception lstm mlp mlp-small "));
  CHECK_FALSE(holds(refused_model("quantum"), "did you mean"));
}

TEST_CASE("an unknown option is refused with the nearest and the known ones") {
  CHECK(refused_model("fc:hiden=3") == "model fc has no option 'hiden' (did you mean 'hidden'?); options: hidden layers");
  CHECK(refused_model("cnn-bench:width=3") == "model cnn-bench has no options, but 'width' was given");
}

TEST_CASE("a specification that cannot be read is refused") {
  CHECK(holds(refused_model(""), "the name is missing"));
  CHECK(holds(refused_model(":hidden=3"), "the name is missing"));
  CHECK(holds(refused_model("fc:"), "'' is not key=value"));
  CHECK(holds(refused_model("fc:hidden"), "'hidden' is not key=value"));
  CHECK(holds(refused_model("fc:hidden="), "'hidden=' is not key=value"));
  CHECK(holds(refused_model("fc:=3"), "'=3' is not key=value"));
  CHECK(holds(refused_model("fc:hidden=3,"), "'' is not key=value"));
  CHECK(holds(refused_model("fc:hid\nden=3"), "holds a control character"));
  CHECK(holds(refused_model("fc:hidden=3,hidden=4"), "hidden is given twice"));
}

TEST_CASE("a value out of its range is refused with the range") {
  CHECK(refused_model("fc:hidden=0") == "model option hidden=0: expected a whole number from 1 to 1099511627776");
  for (const char* value : {"-1", "3.5", "ten", "3x", "99999999999999999999", " 3"}) {
    CHECK(holds(refused_model(std::string("fc:hidden=") + value), "expected a whole number"));
  }
  for (const char* value : {"nan", "inf", "0", "1e9", "1,5"}) refused_model(std::string("cnn:width=") + value);
  CHECK(refused_model("transformer:dropout=1", kText) == "model option dropout=1: expected a number from 0 to 0.999");
  CHECK(refused_model("resnet50:norm=ghosts") ==
        "model option norm=ghosts: expected ghost or batch or group or none (did you mean 'ghost'?)");
  for (const char* blocks : {"3-4-", "-3", "3--4", "0-1", "3,4", "x", "1000", "1-1-1-1-1-1-1-1-1"}) {
    refused_model(std::string("resnet50:blocks=") + blocks);
  }
  CHECK(holds(refused_model("transformer:width=10,heads=3", kText), "heads must divide its width"));
}

TEST_CASE("data that does not fit is refused with what the model needs") {
  CHECK(holds(refused_model("fc", kText),
              "model fc needs pictures or other numbers (such as --data fashion-mnist, or csv:FILE), but this data is text"));
  const DataShape row{DataShape::Kind::kImage, {5}, 3, {}, true};
  CHECK(build_model("fc:hidden=4", row, 1)->loss_name() == "mse");
  CHECK(build_model("fc:hidden=4", DataShape{DataShape::Kind::kImage, {5}, 3, {}}, 1)->loss_name().empty());
  for (const char* name : {"cnn", "resnet8", "resnet50", "vgg11", "inception", "mlp", "mlp-small", "cnn-bench"}) {
    CHECK(refused_model(name, kText) ==
          std::string("model ") + name + " needs pictures of at least 8 x 8 (such as --data fashion-mnist), but this data is text");
  }
  for (const char* name : {"lstm", "transformer", "gpt"}) {
    CHECK(refused_model(name) == std::string("model ") + name + " needs text (such as --data text:FILE), but this data is pictures");
  }
  CHECK(holds(refused_model("cnn", {DataShape::Kind::kImage, {3, 8, 7}, 10, {}}), "but this data has 3 x 8 x 7"));
  CHECK(holds(refused_model("cnn", {DataShape::Kind::kImage, {64}, 10, {}}), "1 dimensions"));
  CHECK(holds(refused_model("cnn", {DataShape::Kind::kImage, {3, 8, 8}, 0, {}}), "0 classes"));
}

TEST_CASE("a registered Sequential is built with its options") {
  CHECK(cohort::registered_models().count("registry-test") == 1);
  const auto graph = build_model("registry-test:width=5", kPictures, 1);
  CHECK(graph->named_parameters()["0.weight"].sizes() == at::IntArrayRef({5, 4}));
  CHECK(holds(refused_model("registry-test:wide=5"), "did you mean 'width'?"));
}

TEST_CASE("a factory may build another model and take it in") {
  cohort::register_model("registry-test-outer", "", [](const ModelOptions& options) {
    auto graph = std::make_shared<LayerGraph>();
    const auto inner = graph->register_module("inner", build_model("fc:hidden=3", options.data(), 2));
    graph->add("outer", "model", [inner](const LayerGraph::Inputs& in) { return inner->forward(in[0]); });
    return graph;
  });
  CHECK(build_model("registry-test-outer", kPictures, 1)->parameters().size() ==
        build_model("fc:hidden=3", kPictures, 1)->parameters().size());
}

TEST_CASE("a name is registered once, and must be one that can be typed") {
  const auto factory = [](const ModelOptions&) { return std::make_shared<LayerGraph>(); };
  CHECK(refused([&] { cohort::register_model("cnn", "", factory); }) == "model cnn cannot be registered: the name is taken");
  for (const char* name : {"", "a:b", "a b", "a=b", "a,b"}) refused([&] { cohort::register_model(name, "", factory); });
  refused([&] { cohort::register_model("no-factory", "", nullptr); });
  cohort::register_model("registry-test-empty", "", factory);
  CHECK(refused_model("registry-test-empty") == "model registry-test-empty: its factory made no layers");
}

TEST_CASE("what a factory itself finds wrong keeps its words, with the model's name") {
  cohort::register_model("registry-test-failing", "", [](const ModelOptions&) -> std::shared_ptr<LayerGraph> {
    throw std::runtime_error("there is no folder 'embeddings'");
  });
  CHECK(refused_model("registry-test-failing") ==
        "model registry-test-failing: its factory failed (its error is: there is no folder 'embeddings')");
}

TEST_CASE("a Sequential becomes a graph with the children's names and the same result") {
  torch::manual_seed(4);
  torch::nn::Sequential sequential({{"conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3))},
                                    {"act", torch::nn::ReLU()},
                                    {"pool", torch::nn::MaxPool2d(2)},
                                    {"flat", torch::nn::Flatten()},
                                    {"fc", torch::nn::Linear(27, 4)}});
  const auto graph = cohort::BuiltModel(sequential).graph;
  std::vector<std::string> names, kinds;
  for (const auto& layer : graph->layers()) {
    names.push_back(layer.name);
    kinds.push_back(layer.kind);
  }
  CHECK(names == std::vector<std::string>{"conv", "act", "pool", "flat", "fc"});
  CHECK(kinds == std::vector<std::string>{"conv2d", "relu", "maxpool2d", "flatten", "linear"});
  CHECK(graph->named_parameters().keys() == sequential->named_parameters().keys());
  CHECK(graph->parameters()[0].is_same(sequential->parameters()[0]));
  const at::Tensor x = at::randn({3, 2, 8, 8});
  CHECK(at::equal(graph->forward(x), sequential->forward(x)));
  CHECK(refused([] { cohort::BuiltModel(torch::nn::Sequential()); }) == "a model cannot be an empty torch::nn::Sequential");
}

/// Modules as a program has them: by value, by reference, with a parameter that has a default, and without a holder.
struct DoubledImpl : torch::nn::Module {
  explicit DoubledImpl(int64_t width) : inner(register_module("inner", torch::nn::Linear(4, width))) {}
  at::Tensor forward(at::Tensor x, double factor = 2) { return inner(x) * factor; }
  torch::nn::Linear inner;
};
TORCH_MODULE(Doubled);

struct Bare : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + 1; }
};
template <typename>
struct PlusOne : torch::nn::Module {
  at::Tensor forward(at::Tensor& x) { return x + 1; }
};
struct TwoInputs : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x + y; }
};

static_assert(cohort::OneTensorModule<Bare> && cohort::OneTensorModule<torch::nn::LinearImpl>);
static_assert(!cohort::OneTensorModule<TwoInputs> && !cohort::OneTensorModule<torch::nn::LSTMImpl>);
static_assert(!cohort::OneTensorModule<torch::nn::Linear> && cohort::ModuleHolder<torch::nn::Linear> && !cohort::ModuleHolder<Bare>);

COHORT_MODEL("registry-test-images", [](const ModelOptions& options) {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(options.data().input.at(1), 3));
});
COHORT_MODEL("registry-test-negative", [](const ModelOptions&) { return torch::nn::Sequential(torch::nn::Linear(-1, 3)); });

TEST_CASE("a factory that fails is named, with what the data looks like") {
  CHECK(holds(refused_model("registry-test-images", kText),
              "model registry-test-images: its factory failed for samples of (16) bytes of text and 256 byte values; make its layers from "
              "options.data()"));
  CHECK(holds(refused_model("registry-test-negative"), "samples of (1, 28, 28) numbers and 10 classes;"));
  CHECK(holds(refused_model("registry-test-negative"), "(LibTorch says: "));
  CHECK(build_model("registry-test-images", kPictures, 0)->title() == "model registry-test-images");
}

COHORT_MODEL("registry-test-plain", [](const ModelOptions& options) { return Doubled(options.integer("width", 3)); });

TEST_CASE("any module with one tensor in and out becomes a graph of one layer") {
  const auto graph = build_model("registry-test-plain:width=5", kPictures, 1);
  REQUIRE(graph->layers().size() == 1);
  CHECK(graph->layers()[0].name == "model");
  CHECK(graph->layers()[0].kind == "::doubled");
  CHECK(graph->named_parameters().keys() == std::vector<std::string>{"model.inner.weight", "model.inner.bias"});
  CHECK_FALSE(graph->loss());

  const Doubled holder(3);
  const auto of_holder = cohort::BuiltModel(holder).graph;
  CHECK(of_holder->parameters()[0].is_same(holder->inner->weight));
  const at::Tensor x = at::randn({2, 4});
  CHECK(at::equal(of_holder->forward(x), holder->inner.ptr()->forward(x) * 2));
  of_holder->eval();
  CHECK_FALSE(holder->is_training());

  CHECK(at::equal(cohort::BuiltModel(std::make_shared<Bare>()).graph->forward(x), x + 1));
  const auto of_template = cohort::BuiltModel(std::make_shared<PlusOne<LayerGraph::Layer>>()).graph;
  CHECK(at::equal(of_template->forward(x), x + 1));
  CHECK(of_template->layers()[0].kind == "::plusone");
  // One of LibTorch's own is what its kind says.
  CHECK(cohort::BuiltModel(torch::nn::Linear(2, 3)).graph->layers()[0].kind == "linear");
  CHECK(holds(refused([] { cohort::BuiltModel(Doubled(nullptr)); }), "a model cannot be an empty module"));
  CHECK(holds(refused([] { cohort::BuiltModel(std::shared_ptr<Bare>()); }), "a model cannot be an empty module"));
}

TEST_CASE("a model brings a loss of its own, whatever it is made of") {
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); };
  CHECK(cohort::BuiltModel(Doubled(3), {.loss = loss}).graph->loss());
  CHECK(cohort::BuiltModel(torch::nn::Sequential(torch::nn::Linear(2, 3)), {.loss = loss}).graph->loss());
  CHECK(cohort::BuiltModel(std::make_shared<LayerGraph>(), {.loss = loss}).graph->loss());
  // What a graph brings itself stays.
  const auto graph = std::make_shared<LayerGraph>();
  graph->set_loss(loss);
  CHECK(cohort::BuiltModel(graph).graph->loss());
}

}  // namespace
