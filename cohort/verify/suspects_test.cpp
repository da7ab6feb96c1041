#include "cohort/verify/suspects.h"

#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "cohort/base/text/json.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"

namespace {

using cohort::describe_modules;
using cohort::LayerGraph;
using cohort::Suspect;
using cohort::suspects_of;

struct Averaging : torch::nn::Module {
  Averaging() {
    register_buffer("average", at::zeros({3}));
    register_buffer("count", at::zeros({1}, at::kLong));
    register_buffer("constant", at::zeros({3}));
  }
};

/// A layer whose forward is never run.
void add(LayerGraph& graph, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  graph.add_layer(name, "any", std::move(module), [](const LayerGraph::Inputs& in) { return in[0]; }, {});
}

std::vector<std::string> names(const std::vector<Suspect>& suspects) {
  std::vector<std::string> result;
  for (const Suspect& suspect : suspects) result.push_back(suspect.module + " " + suspect.class_name);
  return result;
}

bool average_moved(const std::string& buffer) { return buffer.ends_with(".average") || buffer.ends_with(".count"); }

TEST_CASE("suspects: layers that draw from LibTorch's generator, under any layout") {
  LayerGraph graph;
  add(graph, "linear", torch::nn::Linear(2, 2).ptr());
  add(graph, "drop", torch::nn::Dropout(0.1).ptr());
  add(graph, "none", torch::nn::Dropout(0.0).ptr());
  add(graph, "drop2", torch::nn::Dropout2d(0.1).ptr());
  add(graph, "alpha", torch::nn::AlphaDropout(0.1).ptr());
  add(graph, "feature", torch::nn::FeatureAlphaDropout(0.1).ptr());
  add(graph, "ours", cohort::Dropout(0.1, 1).ptr());
  add(graph, "rrelu", torch::nn::RReLU().ptr());
  add(graph, "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(2, 2).num_layers(2).dropout(0.1)).ptr());
  add(graph, "lstm1", torch::nn::LSTM(torch::nn::LSTMOptions(2, 2)).ptr());
  add(graph, "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(2, 1).dropout(0.1)).ptr());
  add(graph, "norm", torch::nn::BatchNorm1d(2).ptr());
  const std::vector<std::string> expected = {"drop torch::nn::Dropout",
                                             "drop2 torch::nn::Dropout2d",
                                             "alpha torch::nn::AlphaDropout",
                                             "feature torch::nn::FeatureAlphaDropout",
                                             "rrelu torch::nn::RReLU",
                                             "lstm torch::nn::LSTM",
                                             "attention torch::nn::MultiheadAttention"};
  CHECK(names(suspects_of(describe_modules(graph), {})) == expected);
}

TEST_CASE("suspects: statistics of a part of the batch, where it is divided") {
  LayerGraph graph;
  add(graph, "norm", torch::nn::BatchNorm2d(2).ptr());
  add(graph, "ghost", cohort::GhostBatchNorm2d(2, 4).ptr());
  const auto twice = std::make_shared<Averaging>();
  add(graph, "own", twice);
  add(graph, "again", twice);
  const cohort::Json modules = describe_modules(graph);
  CHECK(names(suspects_of(modules, {.moved = average_moved})).empty());
  const auto found = suspects_of(modules, {.batch_is_divided = true, .moved = average_moved});
  CHECK(names(found) == std::vector<std::string>{"norm torch::nn::BatchNorm2d", "own Averaging"});
  // A counter is no statistic, and a buffer that stays is a constant.
  CHECK(found.at(1).why.starts_with("keeps average, which training changes"));
  CHECK(names(suspects_of(modules, {.batch_is_divided = true, .sync_batch_norm = true})).empty());
}

TEST_CASE("suspects: the loss of the model where nothing else is") {
  LayerGraph graph;
  add(graph, "drop", torch::nn::Dropout(0.1).ptr());
  graph.set_loss([](const at::Tensor& output, const at::Tensor&) { return output.max(); });
  CHECK(names(suspects_of(describe_modules(graph), {.batch_is_divided = true})) == std::vector<std::string>{"drop torch::nn::Dropout"});
  LayerGraph other;
  other.set_loss(graph.loss());
  CHECK(names(suspects_of(describe_modules(other), {.batch_is_divided = true})) == std::vector<std::string>{"loss "});
  CHECK(suspects_of(describe_modules(other), {}).empty());
}

}  // namespace
