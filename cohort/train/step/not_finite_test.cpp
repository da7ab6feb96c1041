#include "cohort/train/step/not_finite.h"

#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

std::shared_ptr<LayerGraph> three_layers() {
  auto graph = std::make_shared<LayerGraph>();
  graph->add("first", "linear", torch::nn::Linear(4, 4));
  graph->add("norm", "batchnorm", torch::nn::BatchNorm1d(4));
  graph->add("grow", "exp", [](const LayerGraph::Inputs& in) { return (in[0] * 1e3).exp(); });
  graph->add("last", "linear", torch::nn::Linear(4, 2));
  return graph;
}

TEST_CASE("not finite: the first layer whose output is not, with what it takes") {
  const auto graph = three_layers();
  const std::string found = first_not_finite(*graph, at::randn({8, 4}));
  CHECK(found.starts_with("; the first tensor that is not finite: the output of layer 'grow' (exp), (8, 4), "));
  CHECK(found.find(" of 32 elements; the largest number that it takes is ") != std::string::npos);
  CHECK(found.ends_with(", and of its weights none"));
}

TEST_CASE("not finite: weights and statistics come before outputs, the input before layers") {
  at::NoGradGuard no_grad;
  auto graph = three_layers();
  graph->parameters()[0][1][2] = NAN;
  CHECK(first_not_finite(*graph, at::ones({8, 4})) ==
        "; the first tensor that is not finite: weight 'first.weight', (4, 4), 1 of 16 elements, since an update before");
  graph = three_layers();
  graph->buffers()[0][0] = INFINITY;
  CHECK(first_not_finite(*graph, at::Tensor()).find("'norm.running_mean', (4), 1 of 4 elements") != std::string::npos);
  graph = three_layers();
  CHECK(first_not_finite(*graph, at::ones({8, 4}) / 0.0).find("the input, so the data hold it, (8, 4), 32 of 32") != std::string::npos);
}

TEST_CASE("not finite: where all are finite that is said; layers that do not run are no error") {
  LayerGraph graph;
  graph.add("first", "linear", torch::nn::Linear(4, 4));
  CHECK(first_not_finite(graph, at::ones({2, 4})).find("all outputs of layers on this rank's samples are finite") != std::string::npos);
  CHECK(first_not_finite(graph, at::Tensor()) == "; all weights of this rank are finite");
  CHECK(first_not_finite(graph, at::ones({2, 5})) == "; all weights are finite");
}

}  // namespace
}  // namespace cohort
