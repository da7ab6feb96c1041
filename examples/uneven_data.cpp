// Ranks with different amounts of data in your own training loop. Rank r reads r + 1 files; a rank that has read all of its files keeps
// taking part in the steps of the others, so that no rank hangs, and the gradient of each step is the mean over its samples.
//
//   mpirun -n 3 uneven_data       (or torchrun --no-python --nproc-per-node 3, srun, cohort launch -n 3; alone it is one rank)
//
// Test: uneven_data
// Test: mpirun -n 3 uneven_data
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "cohort/comm/group.h"
#include "cohort/parallel/join.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/world/world.h"

namespace {

constexpr int kBatchesOfFile = 8, kEpochs = 10;
constexpr double kSlope = 3.0, kOffset = -1.0;

int train() {
  cohort::Group group = cohort::Group::create(cohort::world_from_environment());
  torch::set_num_threads(1);
  torch::manual_seed(1 + group.rank());  // Each rank has its own samples; the weights come from rank 0.

  torch::nn::Linear model(1, 1);
  cohort::DataParallel parallel(*model, group, {.mean = cohort::GradientMean::kSamples});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  cohort::Join join(*model, parallel);

  const int num_batches = kBatchesOfFile * (group.rank() + 1);
  int64_t steps = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int batch = 0; batch < num_batches; ++batch, ++steps) {
      const int64_t samples = 16 + 4 * (batch % 3);  // Batches may differ in size, too.
      const torch::Tensor x = torch::randn({samples, 1}), y = kSlope * x + kOffset + 0.1 * torch::randn({samples, 1});
      join.step(samples);
      optimizer.zero_grad();
      torch::mse_loss(model->forward(x), y).backward();  // Here the gradients are exchanged.
      optimizer.step();
    }
    // No data left: takes part in the steps of the others, and applies their gradients.
    steps += join.finish([&] { optimizer.step(); });
  }

  const double slope = model->weight.item<double>(), offset = model->bias.item<double>();
  const torch::Tensor mine = torch::tensor({slope, offset, static_cast<double>(steps)}, torch::kFloat64);
  torch::Tensor all = torch::empty({group.size(), 3}, torch::kFloat64);
  if (group.size() > 1) group.all_gather(all, mine, "final weights");
  else all.copy_(mine.unsqueeze(0));
  std::printf("rank %d: %d batches of its own, %ld steps, y = %.3f x %+.3f\n", group.rank(), kEpochs * num_batches,
              static_cast<long>(steps), slope, offset);
  const bool right =
      std::abs(slope - kSlope) < 0.05 && std::abs(offset - kOffset) < 0.05 && steps == int64_t{kEpochs} * kBatchesOfFile * group.size();
  return right && torch::equal(all, mine.unsqueeze(0).expand_as(all)) ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "uneven_data: %s\n", error.what());
    return 1;
  }
}
