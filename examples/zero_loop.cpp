// A model whose weights, gradients and optimizer state are divided over the ranks (ZeRO stage 3), in your own training loop. The
// module is an ordinary torch::nn::Module: it does not know of ranks. Prints what one rank holds beside the formula and beside the whole
// model.
//
//   mpirun -n 2 zero_loop       (or torchrun --no-python --nproc-per-node 2, srun, cohort launch -n 2; alone it is one rank)
//
// Test: zero_loop
// Test: mpirun -n 2 zero_loop
// Test: mpiexec.mpich -n 3 zero_loop
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "cohort/world/world.h"

namespace {

constexpr int64_t kBatch = 24, kWidth = 256;  // The batch of all ranks together.
constexpr int kSteps = 60, kDepth = 6;

/// Residual blocks that share one scale.
struct NetImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> blocks;
  torch::nn::Linear head{nullptr};
  torch::Tensor scale;

  NetImpl() {
    for (int i = 0; i < kDepth; ++i) blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    head = register_module("head", torch::nn::Linear(kWidth, 1));
    scale = register_parameter("scale", torch::ones({kWidth}));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Linear& block : blocks) x = x + torch::tanh(block(x)) * scale;
    return head(x).squeeze(1);
  }
};
TORCH_MODULE(Net);

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int train() {
  cohort::Group group = cohort::Group::create(cohort::world_from_environment());
  torch::set_num_threads(1);
  torch::manual_seed(1);  // The same batches on every rank; each takes its rows.
  Net model;
  int64_t whole_bytes = 0;
  for (const torch::Tensor& parameter : model->parameters()) whole_bytes += static_cast<int64_t>(parameter.nbytes());

  // Units of 512 KiB: here two blocks are gathered at a time. From now on a parameter has memory only while an operator reads it.
  cohort::ZeroDataParallel zero(*model, group, {.stage = 3, .rule = {.kind = cohort::UpdateRule::Kind::kAdamW}, .bucket_bytes = 512 << 10});
  const cohort::Share share = cohort::share_of_rank(kBatch, group.rank(), group.size());
  double first_loss = 0, loss_value = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor x = torch::randn({kBatch, kWidth}), y = torch::sin(x.narrow(1, 0, 1)).squeeze(1);
    zero.zero_grad();
    if (share.size() > 0) {
      const torch::Tensor error = model->forward(x.slice(0, share.begin, share.end)) - y.slice(0, share.begin, share.end);
      const torch::Tensor loss = error.pow(2).sum() / kBatch;  // Divided by the samples of all ranks: the sum over ranks is the mean.
      zero.set_control(0, loss.item<float>());                 // Travels with the gradients.
      loss.backward();
    } else {
      zero.exchange_without_backward();
    }
    zero.finish_backward();
    zero.step({.learning_rate = 1e-3, .clip_norm = 1.0});
    loss_value = zero.control_sum(0);
    if (step == 1) first_loss = loss_value;
    if (group.rank() == 0 && step % 20 == 0) std::printf("step %d loss %.4f\n", step, loss_value);
  }

  if (group.rank() == 0) {
    const cohort::MemoryForecast forecast = zero.memory_forecast();
    const int64_t all = forecast.weight_bytes + forecast.gradient_bytes + forecast.optimizer_bytes;
    std::printf("one process: %.1f MiB of weights, gradients and Adam's state\n", mebibytes(4 * whole_bytes));
    std::printf("each of %d ranks: at most %.1f MiB by the formula; held %.1f MiB, of them whole units %.1f MiB\n", group.size(),
                mebibytes(all), mebibytes(zero.peak_bytes()), mebibytes(zero.peak_unit_bytes()));
  }
  zero.gather_weights();  // Every rank has the whole module again.
  const torch::Tensor mine = torch::nn::utils::parameters_to_vector(model->parameters()).detach().contiguous();
  torch::Tensor everyones = torch::empty({group.size(), mine.numel()});
  group.all_gather(everyones, mine, "final weights");
  return loss_value < first_loss / 2 && torch::equal(everyones, mine.unsqueeze(0).expand_as(everyones)) ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zero_loop: %s\n", error.what());
    return 1;
  }
}
