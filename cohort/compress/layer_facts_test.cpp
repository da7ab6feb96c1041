#include "cohort/compress/layer_facts.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "cohort/models/layers/dropout.h"
#include "cohort/models/parts.h"

namespace cohort {
namespace {

using Does = LayerFacts::Does;

std::vector<LayerFacts> facts_of(LayerGraph& graph, const std::vector<int64_t>& shape) {
  torch::manual_seed(4);
  graph.eval();
  return examine_layers(graph, at::randn(shape));
}

TEST_CASE("what layers do, and what they can absorb") {
  LayerGraph graph;
  add_conv(graph, "conv", 2, 4, 3, 1, /*bias=*/false);             // 0
  add_norm(graph, "norm", {.kind = "ghost", .ghost_size = 4}, 4);  // 1
  add_relu(graph, "relu");                                         // 2
  const int pool = add_max_pool(graph, "pool", 2, 2);              // 3
  const int branch = add_conv(graph, "branch", 4, 4, 3);           // 4
  add_sum(graph, "sum", pool, branch);                             // 5
  add_relu(graph, "relu2");                                        // 6
  graph.add("dropout", "dropout", Dropout(0.5, 0));                // 7
  add_global_mean(graph, "mean");                                  // 8
  add_linear(graph, "output", 4, 3);                               // 9
  const std::vector<LayerFacts> facts = facts_of(graph, {6, 2, 10, 10});
  const std::vector<Does> wanted = {Does::kConvolution, Does::kNorm, Does::kRelu,    Does::kThrough, Does::kConvolution,
                                    Does::kSum,         Does::kRelu, Does::kThrough, Does::kOther,   Does::kProduct};
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    CHECK((facts[i].does == wanted[i]));
  }
  CHECK((facts[0].norm == size_t{1}));
  CHECK((facts[0].relu == size_t{2}));
  CHECK(facts[0].last(0) == 2);
  CHECK_FALSE(facts[4].norm.has_value());
  CHECK((facts[5].relu == size_t{6}));
  CHECK((facts[3].readers == std::vector<size_t>{4, 5}));
}

TEST_CASE("what others read is not absorbed") {
  LayerGraph graph;
  const int conv = add_conv(graph, "conv", 2, 4, 3);
  const int relu = add_relu(graph, "relu");
  add_sum(graph, "sum", conv, relu);
  const std::vector<LayerFacts> facts = facts_of(graph, {6, 2, 8, 8});
  CHECK((facts[0].does == Does::kConvolution));
  CHECK_FALSE(facts[0].relu.has_value());
}

TEST_CASE("a kind is a word: what the layer does is compared") {
  LayerGraph graph;
  graph.add("relu", "relu", [](const LayerGraph::Inputs& in) { return at::tanh(in[0]); });
  const auto conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1)).ptr();
  graph.add_layer("conv", "conv2d", conv, [conv](const LayerGraph::Inputs& in) { return conv->forward(in[0]) * 2; }, {});
  graph.add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1] * 0.5; }, {0, 1});
  graph.add("odd", "conv2d", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1).padding_mode(torch::kReflect)));
  torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(2).track_running_stats(false));
  graph.add("norm", "batchnorm2d", norm);
  for (const LayerFacts& facts : facts_of(graph, {4, 2, 8, 8})) CHECK((facts.does == Does::kOther));
  CHECK(facts_of(graph, {4, 2, 8, 8})[3].why_float.find("conv2d") != std::string::npos);
}

}  // namespace
}  // namespace cohort
