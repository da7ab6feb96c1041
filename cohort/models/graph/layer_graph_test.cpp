#include "cohort/models/graph/layer_graph.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"

namespace {

using cohort::LayerGraph;

LayerGraph::Function plus(double value) {
  return [value](const LayerGraph::Inputs& in) { return in[0] + value; };
}

TEST_CASE("layers run in order along their edges") {
  LayerGraph graph;
  const int a = graph.add("a", "shift", plus(1));
  const int b = graph.add("b", "shift", plus(10));
  const int c = graph.add("c", "shift", plus(100), {a});
  CHECK(graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + 2 * in[1] + 4 * in[2] + 8 * in[3]; },
                  {b, c, LayerGraph::kInput, c}) == 3);
  const at::Tensor x = at::ones({3});
  // b = 12, c = 102, sum = 12 + 2 * 102 + 4 * 1 + 8 * 102
  CHECK(at::equal(graph.forward(x), at::ones({3}) * 1036));
  CHECK(at::equal(graph.forward(x), at::ones({3}) * 1036));  // nothing is left over from the first time
  CHECK(at::equal(x, at::ones({3})));
  CHECK(graph.layers()[1].inputs == std::vector<int>{a});
  CHECK(graph.layers()[0].inputs == std::vector<int>{LayerGraph::kInput});
}

TEST_CASE("one output may be both inputs of a layer") {
  LayerGraph graph;
  const int a = graph.add("a", "shift", plus(1));
  graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1]; }, {a, a});
  CHECK(at::equal(graph.forward(at::ones({2})), at::ones({2}) * 4));
}

TEST_CASE("an intermediate result is freed after its last use, and one that nobody uses at once") {
  LayerGraph graph;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> seen;
  const auto watch = [&seen](const LayerGraph::Inputs& in) {
    at::Tensor out = in[0] + 1;
    seen.emplace_back(out.getIntrusivePtr());
    return out;
  };
  std::vector<std::vector<bool>> alive;  // before the layer runs
  const auto look = [&](const LayerGraph::Inputs& in) {
    auto& now = alive.emplace_back();
    for (const auto& result : seen) now.push_back(!result.expired());
    return in[0] * 1;
  };
  const int a = graph.add("a", "watch", watch);       // last read by `sum`
  graph.add("unused", "watch", watch, {a});           // read by nobody
  const int c = graph.add("c", "watch", watch, {a});  // last read by `look1`
  const int look1 = graph.add("look1", "look", look, {c});
  const int sum = graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1]; }, {look1, a});
  graph.add("look2", "look", look, {sum});
  graph.forward(at::ones({2}));
  REQUIRE(alive.size() == 2);
  CHECK(alive[0] == std::vector<bool>{true, false, true});
  CHECK(alive[1] == std::vector<bool>{false, false, false});
}

TEST_CASE("a graph without layers is the identity") {
  const at::Tensor x = at::ones({2});
  CHECK(LayerGraph().forward(x).is_same(x));
}

TEST_CASE("parameters carry the layers' names, and the mode reaches the modules") {
  LayerGraph graph;
  graph.add("first", "linear", torch::nn::Linear(4, 3));
  graph.add("relu", "relu", [](const LayerGraph::Inputs& in) { return in[0].relu(); });
  graph.add("second", "linear", torch::nn::Linear(3, 2));
  CHECK(graph.named_parameters().keys() == std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias"});
  CHECK(graph.layers()[1].module == nullptr);
  graph.eval();
  CHECK_FALSE(graph.layers()[2].module->is_training());
  CHECK(graph.forward(at::randn({5, 4})).sizes() == at::IntArrayRef({5, 2}));
}

/// Convolution, both batch norms, a residual sum, both dropouts, a weight that two layers use.
std::shared_ptr<LayerGraph> awkward() {
  torch::manual_seed(4);
  auto graph = std::make_shared<LayerGraph>();
  graph->add("conv", "conv2d", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
  const int norm = graph->add("norm", "batchnorm", torch::nn::BatchNorm2d(4));
  graph->add("ghost", "ghostnorm", cohort::GhostBatchNorm2d(4, 2));
  const int relu = graph->add("relu", "relu", [](const LayerGraph::Inputs& in) { return in[0].relu(); });
  graph->add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1]; }, {norm, relu});
  graph->add("flatten", "flatten", [](const LayerGraph::Inputs& in) { return in[0].flatten(1); });
  graph->add("dropout", "dropout", cohort::Dropout(0.3, 0));
  torch::nn::Linear down(4 * 5 * 5, 6);
  graph->add("down", "linear", down);
  graph->add("torch_dropout", "dropout", torch::nn::Dropout(0.3));
  graph->add("up", "linear", [down](const LayerGraph::Inputs& in) { return in[0].matmul(down->weight).tanh(); });
  return graph;
}

std::vector<at::Tensor> train(LayerGraph& graph, const at::Tensor& data) {
  std::vector<at::Tensor> found;
  for (int64_t step = 0; step < 2; ++step) {
    const cohort::StepContextScope scope({.seed = 3, .step = step});
    at::Tensor output = graph.forward(data);
    found.push_back(output.detach());
    output.square().sum().backward();
    for (const at::Tensor& parameter : graph.parameters()) found.push_back(parameter.grad().clone());
    for (const at::Tensor& buffer : graph.buffers()) found.push_back(buffer.clone());
  }
  return found;
}

TEST_CASE("recomputed layers give the same outputs, gradients and statistics, bit for bit") {
  const at::Tensor data = at::randn({4, 2, 5, 5});
  const auto plain = awkward();
  torch::manual_seed(9);
  const auto expected = train(*plain, data);
  const size_t num_layers = plain->layers().size();
  for (size_t which = 0; which <= num_layers; ++which) {  // One alone, and all.
    const auto graph = awkward();
    std::vector<bool> flags(num_layers, which == num_layers);
    if (which < num_layers) flags[which] = true;
    graph->set_recompute(flags);
    CHECK(graph->is_recomputed(which < num_layers ? which : 0));
    torch::manual_seed(9);
    const auto found = train(*graph, data);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      CHECK_MESSAGE(at::equal(found[i], expected[i]), cohort::concat("layer ", which, ", tensor ", i));
  }
}

TEST_CASE("flags of recomputed layers: one a layer; off again; a layer added later has none; backward outlives the graph") {
  auto graph = awkward();
  CHECK_THROWS_WITH_AS(graph->set_recompute({true}), doctest::Contains("1 flags for a model of 10 layers"), cohort::Error);
  graph->set_recompute(std::vector<bool>(10, true));
  graph->add("twice", "scale", [](const LayerGraph::Inputs& in) { return in[0] * 2; });
  CHECK_FALSE(graph->is_recomputed(10));
  const at::Tensor weight = graph->parameters()[0];
  at::Tensor output = graph->forward(at::ones({2, 2, 5, 5}));
  graph.reset();
  output.sum().backward();
  CHECK(weight.grad().defined());
  graph = awkward();
  graph->set_recompute(std::vector<bool>(10, true));
  graph->set_recompute({});
  CHECK_FALSE(graph->is_recomputed(0));
}

TEST_CASE("errors of LibTorch name model, layer, weights and inputs in one line; a layer's own errors stay") {
  LayerGraph graph;
  const int hidden = graph.add("hidden", "linear", torch::nn::Linear(6, 5));
  graph.add("output", "linear", torch::nn::Linear(4, 3));
  graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in.at(0) + in.at(1); }, {hidden});
  const auto message = [&](size_t layer, const LayerGraph::Inputs& inputs) -> std::string {
    try {
      graph.run_layer(layer, inputs);
    } catch (const cohort::Error& error) {
      CHECK(error.code() == cohort::ErrorCode::kBadInput);
      const std::string text = error.what();
      CHECK(text.find('\n') == std::string::npos);
      return text;
    }
    return "";
  };
  CHECK(message(1, {at::ones({2, 5})}) ==
        "this model: layer 'output' (linear), with weight (3, 4) float32 and bias (3) float32, failed on the output of layer 'hidden', "
        "(2, 5) float32; make the sizes and types of these layers fit (LibTorch says: mat1 and mat2 shapes cannot be multiplied (2x5 and "
        "4x3))");
  graph.set_title("model mine");
  graph.set_recompute({true, true, true});
  const std::string of_input = message(0, {at::ones({2, 6}, at::kLong)});
  CHECK(of_input.find("model mine: layer 'hidden' (linear)") == 0);
  CHECK(of_input.find("failed on the model's input, (2, 6) int64; integers") != std::string::npos);
  CHECK(message(0, {at::Tensor()}).find("the model's input, no tensor;") != std::string::npos);
  CHECK(message(2, {at::ones({2, 5})}).find("layer 'sum' (add) failed on the output of layer 'hidden', (2, 5) float32;") !=
        std::string::npos);
  LayerGraph own;
  own.add("own", "own", [](const LayerGraph::Inputs&) -> at::Tensor { cohort::fail(cohort::ErrorCode::kEnvironment, "a peer is lost"); });
  own.add("throws", "own", [](const LayerGraph::Inputs&) -> at::Tensor { throw std::invalid_argument("mine"); });
  own.add("memory", "own", [](const LayerGraph::Inputs&) { return at::ones({int64_t{1} << 50}); });
  CHECK_THROWS_WITH_AS(own.run_layer(0, {}), "a peer is lost", cohort::Error);
  CHECK_THROWS_WITH_AS(own.run_layer(1, {}), "mine", std::invalid_argument);
  CHECK_THROWS_AS(own.run_layer(2, {}), c10::Error);
}

TEST_CASE("an invalid layer is refused with its name") {
  LayerGraph graph;
  graph.add("a", "shift", plus(1));
  const auto message = [&](const std::string& name, std::vector<int> inputs) -> std::string {
    try {
      graph.add(name, "shift", plus(1), std::move(inputs));
    } catch (const cohort::Error& error) {
      CHECK(error.code() == cohort::ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  };
  CHECK(message("a", {}) == "layer 1: the name 'a' is already taken by another layer of this model");
  CHECK(message("b.c", {}).find("without dots") != std::string::npos);
  CHECK(message("", {}).find("non-empty") != std::string::npos);
  CHECK(message("b", {1}).find("layer 'b': input 1 is not an earlier layer") != std::string::npos);
  CHECK(message("b", {-2}).find("input -2") != std::string::npos);
  CHECK_THROWS_AS(graph.add_layer("b", "none", nullptr, nullptr, {}), cohort::Error);
  CHECK(graph.layers().size() == 1);
}

}  // namespace
