// Your own training loop on several ranks: a module, DataParallel around it, and nothing else of Cohort. Fits a line through noisy points;
// each rank sees its own quarter, half, ... of every batch, and all ranks end with the same weights.
//
//   mpirun -n 2 data_parallel_loop       (or torchrun --no-python --nproc-per-node 2, srun, cohort launch -n 2; alone it is one rank)
//
// Test: data_parallel_loop
// Test: mpirun -n 2 data_parallel_loop
// Test: mpiexec.mpich -n 3 data_parallel_loop
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/world/world.h"

namespace {

constexpr int64_t kBatch = 64;  // Samples of all ranks together.
constexpr int kSteps = 200;
constexpr double kSlope = 3.0, kOffset = -1.0;

int train() {
  cohort::Group group = cohort::Group::create(cohort::world_from_environment());
  torch::set_num_threads(1);
  torch::manual_seed(1);  // The same points on every rank; each takes its share of a batch.

  torch::nn::Linear model(1, 1);
  // Each rank's loss is the mean over its own samples; weighted by their number the exchange is exact for shares of any size.
  cohort::DataParallel parallel(*model, group, {.mean = cohort::GradientMean::kSamples});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const cohort::Share share = cohort::share_of_rank(kBatch, group.rank(), group.size());
  parallel.set_local_samples(share.size());

  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor x = torch::randn({kBatch, 1}), y = kSlope * x + kOffset + 0.1 * torch::randn({kBatch, 1});
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(x.slice(0, share.begin, share.end)), y.slice(0, share.begin, share.end));
    loss.backward();  // Here the gradients are exchanged.
    optimizer.step();
    if (group.rank() == 0 && step % 50 == 0) std::printf("step %d loss %.4f\n", step, loss.item<double>());
  }

  const double slope = model->weight.item<double>(), offset = model->bias.item<double>();
  torch::Tensor mine = torch::tensor({slope, offset}, torch::kFloat64), all = torch::empty({group.size(), 2}, torch::kFloat64);
  group.all_gather(all, mine, "final weights");
  if (group.rank() == 0) std::printf("y = %.3f x %+.3f on %d ranks\n", slope, offset, group.size());
  const bool right = std::abs(slope - kSlope) < 0.05 && std::abs(offset - kOffset) < 0.05;
  return right && torch::equal(all, mine.unsqueeze(0).expand_as(all)) ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel_loop: %s\n", error.what());
    return 1;
  }
}
