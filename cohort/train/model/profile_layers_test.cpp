#include "cohort/train/model/profile_layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <map>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/registry.h"
#include "tests/support/shm_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

const DataShape kMnist{DataShape::Kind::kImage, {1, 28, 28}, 10, {}};
const DataShape kText{DataShape::Kind::kText, {12}, 256, {}};

at::Tensor input_of(const DataShape& data, int64_t samples) {
  if (data.kind == DataShape::Kind::kText) return at::randint(data.num_classes, {samples, data.input[0]}, at::kLong);
  return at::randn({samples, data.input[0], data.input[1], data.input[2]});
}

std::map<std::string, LayerProfile> by_name(const Profile& profile) {
  std::map<std::string, LayerProfile> layers;
  for (const LayerProfile& layer : profile.layers) layers[layer.name] = layer;
  return layers;
}

TEST_CASE("the built-in families: every layer has times and its bytes, and the profile is one") {
  struct Case {
    const char* model;
    DataShape data;
  };
  for (const auto& [model, data] : {Case{"cnn", kMnist}, Case{"resnet8", kMnist}, Case{"transformer", kText}, Case{"lstm", kText}}) {
    CAPTURE(model);
    const auto graph = build_model(model, data, 1);
    const Profile profile = profile_layers(*graph, input_of(data, 4), {.repeats = 2});
    check_profile(profile);
    CHECK(profile.micro_batch == 4);
    REQUIRE(profile.layers.size() == graph->layers().size());
    int64_t weight_bytes = 0, expected_bytes = 0;
    double seconds = 0;
    for (const LayerProfile& layer : profile.layers) {
      CAPTURE(layer.name);
      CHECK(layer.forward_seconds > 0);
      CHECK(layer.output_bytes > 0);
      CHECK(layer.stash_bytes >= 0);
      weight_bytes += layer.weight_bytes;
      seconds += layer.forward_seconds + layer.backward_input_seconds + layer.backward_weight_seconds;
      const bool is_first = &layer == &profile.layers.front();
      CHECK((layer.backward_input_seconds > 0) == !is_first);  // The model's input needs no gradient.
    }
    for (const at::Tensor& parameter : graph->parameters()) expected_bytes += static_cast<int64_t>(parameter.nbytes());
    CHECK(weight_bytes == expected_bytes);
    CHECK(profile.layers.back().output_kept == OutputKept::kNo);  // The loss is not there.
    size_t num_edges = 0;
    for (const LayerGraph::Layer& layer : graph->layers()) num_edges += layer.inputs.size();
    CHECK(profile.edges.size() == num_edges);
    CHECK(seconds < 30);
  }
}

TEST_CASE("bytes that are known") {
  constexpr int64_t kSamples = 8, kFloat = 4;
  LayerGraph graph;
  graph.add("first", "linear", torch::nn::Linear(10, 20));                                  // Keeps the model's input, which is nobody's.
  graph.add("relu", "relu", [](const LayerGraph::Inputs& in) { return at::relu(in[0]); });  // Keeps its result,
  const int second = graph.add("second", "linear", torch::nn::Linear(20, 30));              // which this keeps too.
  const int flat = graph.add("flat", "flatten", [](const LayerGraph::Inputs& in) { return at::flatten(in[0], 1); });
  const int third = graph.add("third", "linear", torch::nn::Linear(torch::nn::LinearOptions(30, 30).bias(false)), {flat});
  graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return at::add(in[0], in[1]); }, {second, third});
  graph.add("alone", "relu", [](const LayerGraph::Inputs& in) { return at::relu(in[0]); });
  graph.add("in_place", "relu", [](const LayerGraph::Inputs& in) { return in[0].add_(1); });
  const auto layers = by_name(profile_layers(graph, at::randn({kSamples, 10}), {.repeats = 1}));

  CHECK(layers.at("first").weight_bytes == (10 * 20 + 20) * kFloat);
  CHECK(layers.at("first").output_bytes == kSamples * 20 * kFloat);
  CHECK(layers.at("first").stash_bytes == 0);
  CHECK(layers.at("relu").stash_bytes == kSamples * 20 * kFloat);
  CHECK(layers.at("relu").output_kept == OutputKept::kByReaders);
  CHECK(layers.at("second").stash_bytes == kSamples * 30 * kFloat);  // Kept by `third`, through the view of `flat`.
  CHECK(layers.at("second").output_kept == OutputKept::kByReaders);
  CHECK(layers.at("flat").stash_bytes == 0);
  CHECK(layers.at("flat").output_bytes == kSamples * 30 * kFloat);
  CHECK(layers.at("third").weight_bytes == 30 * 30 * kFloat);
  CHECK(layers.at("third").stash_bytes == 0);
  CHECK(layers.at("sum").stash_bytes == 0);
  CHECK(layers.at("alone").stash_bytes == kSamples * 30 * kFloat);
  CHECK(layers.at("alone").output_kept == OutputKept::kByItself);
  CHECK(layers.at("in_place").stash_bytes == 0);
}

TEST_CASE("a shared weight counts in both layers, a frozen one where it lies") {
  const auto tied = build_model("transformer:tied=1,width=32", kText, 1);
  const auto layers = by_name(profile_layers(*tied, input_of(kText, 2), {.repeats = 1}));
  CHECK(layers.at("output").weight_bytes == 256 * 32 * 4);
  CHECK(layers.at("embedding").weight_bytes == (256 + 12) * 32 * 4);

  LayerGraph frozen;
  torch::nn::Linear linear(3, 4);
  linear->weight.set_requires_grad(false);
  frozen.add("linear", "linear", linear);
  CHECK(profile_layers(frozen, at::randn({2, 3}), {.repeats = 1}).layers[0].weight_bytes == (3 * 4 + 4) * 4);
}

TEST_CASE("the stash of all layers is what a forward of the whole model holds") {
  struct Case {
    const char* model;
    DataShape data;
  };
  for (const auto& [model, data] :
       {Case{"cnn", kMnist}, Case{"resnet8", kMnist}, Case{"transformer:dropout=0.1", kText}, Case{"lstm", kText}}) {
    CAPTURE(model);
    // In a process of its own, since the count belongs to the process.
    const ForkedRanks ranks(1, 20, [model = model, data = data](ShmTransport&) -> std::string {
      at::set_num_threads(1);
      limit_memory(0);
      const auto graph = build_model(model, data, 1);
      const at::Tensor input = input_of(data, 4);
      const Profile profile = profile_layers(*graph, input, {.repeats = 1});
      int64_t expected = profile.layers.back().output_bytes;
      for (const LayerProfile& layer : profile.layers) expected += layer.stash_bytes;
      const StepContextScope step({});
      const int64_t before = counted_memory_bytes();
      const at::Tensor output = graph->forward(input);
      const int64_t held = counted_memory_bytes() - before;
      return held == expected ? "as expected" : concat(held, " bytes held, ", expected, " expected");
    });
    CHECK(ranks.report(0) == "as expected");
  }
}

TEST_CASE("half precision halves what is handed on") {
  LayerGraph graph;
  graph.add("a", "linear", torch::nn::Linear(64, 64));
  graph.add("b", "linear", torch::nn::Linear(64, 64));
  const Profile profile = profile_layers(graph, at::randn({32, 64}), {.repeats = 1, .precision = Precision::kBf16});
  CHECK(profile.layers[0].output_bytes == 32 * 64 * 2);
  CHECK(profile.layers[0].weight_bytes == (64 * 64 + 64) * 4);  // Masters.
  CHECK(profile.layers[0].stash_bytes >= 32 * 64 * 2);
}

TEST_CASE("the model, its state and the generator stay bit for bit, also after an error") {
  LayerGraph graph;
  graph.add("linear", "linear", torch::nn::Linear(6, 6));
  torch::nn::BatchNorm1d norm(6);
  graph.add("norm", "batchnorm", norm);
  graph.add("dropout", "dropout", torch::nn::Dropout(0.5));
  bool broken = false;
  graph.add("maybe", "test", [&](const LayerGraph::Inputs& in) {
    if (broken) throw std::runtime_error("broken");
    return in[0] * 2;
  });
  graph.eval();
  norm->train();
  const at::Tensor input = at::randn({5, 6});
  for (const at::Tensor& parameter : graph.parameters()) parameter.mutable_grad() = at::randn(parameter.sizes());
  std::vector<at::Tensor> before;
  const auto state = [&] {
    std::vector<at::Tensor> all = graph.parameters();
    for (const at::Tensor& parameter : graph.parameters()) all.push_back(parameter.grad());
    for (const at::Tensor& buffer : graph.buffers()) all.push_back(buffer);
    all.push_back(input);
    all.push_back(at::detail::getDefaultCPUGenerator().get_state());
    return all;
  };
  for (const at::Tensor& tensor : state()) before.push_back(tensor.detach().clone());
  for (const bool breaks : {false, true}) {
    broken = breaks;
    if (breaks) CHECK_THROWS_WITH(profile_layers(graph, input), "broken");
    else profile_layers(graph, input);
    const std::vector<at::Tensor> after = state();
    REQUIRE(after.size() == before.size());
    for (size_t i = 0; i < after.size(); ++i) CHECK(after[i].equal(before[i]));
    CHECK_FALSE(graph.is_training());
    CHECK(norm->is_training());
    CHECK_FALSE(input.requires_grad());
  }
}

TEST_CASE("what can not be profiled is refused") {
  LayerGraph graph;
  CHECK_THROWS_WITH_AS(profile_layers(graph, at::randn({2, 3})), doctest::Contains("no layers"), Error);
  graph.add("a", "linear", torch::nn::Linear(3, 3));
  CHECK_THROWS_WITH_AS(profile_layers(graph, at::randn({0, 3})), doctest::Contains("a micro-batch of at least one sample"), Error);
  CHECK_THROWS_WITH_AS(profile_layers(graph, at::randn({2, 3}), {.repeats = 0}), doctest::Contains("0 repeats"), Error);
}

}  // namespace
}  // namespace cohort
