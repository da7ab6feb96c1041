// Your own model under Cohort's program: this binary has every verb of `cohort`, and an additional model. The model is a small CNN with
// three parallel branches, written as a LayerGraph: layers have names, and a layer that reads several others names them by the indices that
// add() returned. (A model without branches can be a torch::nn::Sequential: examples/consumer/main.cpp.)
//
//   own_model train  --model branches:width=16 --data fashion-mnist --workers 2 --optimizer momentum --lr 0.05
//   own_model verify --model branches --data fashion-mnist --workers 2
//
// The first test trains until nearly all validation pictures are right; the second compares 2 workers with one process, tensor by tensor.
//
// Test: own_model train --model branches --data synthetic:1x16x16,classes=4,samples=1024 --workers 2 --lr 0.05 --steps 60 --json --run run | grep '"val_error":0.0'
// Test: own_model train --model branches --data synthetic:1x16x16,classes=4,samples=256 --workers 2 --metrics sure,f1 --goal 'sure>0.1' --steps 20 --eval-every 5 --json --run run2 | grep '"reason":"goal"'
// Test: own_model verify --model branches:width=6 --data synthetic:3x12x12,classes=4,samples=256 --workers 2 --steps 3 --global-batch 30
#include <torch/torch.h>

#include "cohort/cohort.h"

namespace {

using cohort::LayerGraph;

/// A convolution that keeps height and width.
torch::nn::Conv2d convolution(int64_t in_channels, int64_t out_channels, int64_t size) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, size).padding(size / 2));
}

at::Tensor relu(const LayerGraph::Inputs& in) { return in[0].relu(); }
at::Tensor join_channels(const LayerGraph::Inputs& in) { return torch::cat(in, 1); }

/// Input {samples, channels, height, width}; output {samples, classes}.
std::shared_ptr<LayerGraph> branches(const cohort::ModelOptions& options) {
  const cohort::DataShape& data = options.data();
  if (data.input.size() != 3) throw cohort::Error(cohort::ErrorCode::kBadInput, "the model branches needs pictures");
  const int64_t width = options.integer("width", 8, 2);  // --model branches:width=16; at least 2

  auto graph = std::make_shared<LayerGraph>();
  graph->add("stem", "conv2d", convolution(data.input[0], width, 3));
  const int stem = graph->add("stem_relu", "relu", relu);

  // Three views of the same input. Where no input is named, a layer reads the one added before it.
  const int pixel = graph->add("pixel", "conv2d", convolution(width, width, 1), {stem});
  const int near = graph->add("near", "conv2d", convolution(width, width, 3), {stem});
  graph->add("far_reduce", "conv2d", convolution(width, width / 2, 1), {stem});
  graph->add("far_relu", "relu", relu);
  const int far = graph->add("far", "conv2d", convolution(width / 2, width, 5));

  graph->add("joined", "concat", join_channels, {pixel, near, far});
  graph->add("joined_relu", "relu", relu);
  graph->add("pool", "pool", torch::nn::AdaptiveAvgPool2d(4));
  graph->add("flatten", "flatten", torch::nn::Flatten());
  graph->add("output", "linear", torch::nn::Linear(3 * width * 4 * 4, data.num_classes));
  return graph;
}

}  // namespace

COHORT_MODEL("branches", branches);

/// --metrics sure: the mean probability of the right class.
COHORT_METRIC("sure", [](const at::Tensor& scores, const at::Tensor& target) {
  return torch::softmax(scores, 1).gather(1, target.unsqueeze(1)).squeeze(1);
});

int main(int argc, char** argv) { return cohort::run_cli(argc, argv); }
