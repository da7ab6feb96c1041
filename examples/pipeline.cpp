// A model cut into stages, one for each rank, in your own training loop: the graph has a skip connection from its first layer to its last,
// so a value skips the stages between. The batch goes through in micro-batches, by the schedule 1F1B. Checks that the weights are those of
// the same training without a pipeline.
//
//   mpirun -n 2 pipeline       (or torchrun --no-python --nproc-per-node 2, srun, cohort launch -n 2; up to 4 ranks)
//
// Test: pipeline
// Test: cohort launch -n 2 pipeline
// Test: mpirun -n 4 pipeline
// Test: mpiexec.mpich -n 3 pipeline
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/pipeline/pipeline_runner.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/schedule/schedule.h"
#include "cohort/world/world.h"

namespace {

using Inputs = cohort::LayerGraph::Inputs;
constexpr int64_t kBatch = 50, kWidth = 32;
constexpr int kSteps = 60, kMicroBatches = 4;  // A micro-batch has 12 or 13 samples.

std::shared_ptr<cohort::LayerGraph> build() {
  torch::manual_seed(1);  // The same weights on every rank.
  auto graph = std::make_shared<cohort::LayerGraph>();
  const int first = graph->add("in", "linear", torch::nn::Linear(1, kWidth));
  graph->add("tanh1", "tanh", [](const Inputs& in) { return in[0].tanh(); });
  graph->add("middle", "linear", torch::nn::Linear(kWidth, kWidth));
  const int last = graph->add("tanh2", "tanh", [](const Inputs& in) { return in[0].tanh(); });
  graph->add("skip", "add", [](const Inputs& in) { return in[0] + in[1]; }, {first, last});
  graph->add("out", "linear", torch::nn::Linear(kWidth, 1));
  return graph;
}

/// The batch of a step, the same on every rank.
torch::Tensor batch_of(int step) {
  torch::manual_seed(1000 + step);
  return 4 * torch::rand({kBatch, 1}) - 2;
}

/// A micro-batch's part of the mean loss of the batch, so that gradients add up to those of the mean.
torch::Tensor share_of_loss(const torch::Tensor& output, const torch::Tensor& x) {
  return (output - torch::sin(2 * x)).pow(2).sum() / kBatch;
}

/// The same training in one process.
std::shared_ptr<cohort::LayerGraph> train_whole() {
  auto graph = build();
  torch::optim::Adam optimizer(graph->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor x = batch_of(step);
    optimizer.zero_grad();
    share_of_loss(graph->forward(x), x).backward();
    optimizer.step();
  }
  return graph;
}

int train() {
  cohort::Group group = cohort::Group::create(cohort::world_from_environment());
  torch::set_num_threads(1);
  auto graph = build();
  const std::vector<std::vector<int>> first_layers = {
      {0}, {0, 2}, {0, 2, 4}, {0, 1, 3, 5}};  // The first layer of each stage, for 1 to 4 ranks.
  const cohort::StageCut cut = cohort::cut_at(*graph, first_layers.at(static_cast<size_t>(group.size() - 1)));
  const auto schedule = [&](int num_micro_batches) {
    return cohort::make_schedule("1f1b", {.num_ranks = group.size(), .num_micro_batches = num_micro_batches, .edges = cut.stage_edges()});
  };
  cohort::PipelineRunner pipeline(*graph, cut, schedule, group);  // From now on the graph has this rank's layers only,
  torch::optim::Adam optimizer(graph->parameters(), 0.01);        // and the optimizer their weights.

  double loss_value = 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<torch::Tensor> x = batch_of(step).tensor_split(kMicroBatches);
    optimizer.zero_grad();
    loss_value = 0;
    cohort::PipelineWork work;
    work.input = [&](int k) { return x[static_cast<size_t>(k)]; };
    work.loss = [&](int k, const torch::Tensor& output) {  // Called on the last rank.
      const torch::Tensor loss = share_of_loss(output, x[static_cast<size_t>(k)]);
      loss_value += loss.item<double>();
      return loss;
    };
    pipeline.step(kMicroBatches, work);
    optimizer.step();
    if (pipeline.has_last_stage() && (step + 1) % 20 == 0) std::printf("step %d loss %.4f\n", step + 1, loss_value);
  }
  std::printf("rank %d: %zu parameters, at most %d micro-batches kept\n", group.rank(), graph->parameters().size(),
              pipeline.statistics().most_kept);

  const auto whole = train_whole()->named_parameters();
  for (const auto& parameter : graph->named_parameters())
    if (!torch::allclose(parameter.value(), whole[parameter.key()], 1e-3, 1e-4)) return 1;
  return pipeline.has_last_stage() && !(loss_value < 0.2) ? 1 : 0;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline: %s\n", error.what());
    return 1;
  }
}
