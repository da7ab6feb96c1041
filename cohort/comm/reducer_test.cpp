// c10d::Reducer, the engine of PyTorch's DistributedDataParallel, over CollectiveBackend.

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "cohort/comm/group.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/shm/shm_arena.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

constexpr int kSteps = 4, kSamples = 12;

torch::nn::Sequential make_model() {
  const SeededDraws draws(3);
  return torch::nn::Sequential(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 4));
}

torch::Tensor sample(int step) { return torch::sin(torch::arange(kSamples * 6, torch::kFloat) * (step + 1)).view({kSamples, 6}); }
torch::Tensor target(int step) { return torch::cos(torch::arange(kSamples * 4, torch::kFloat) * (step + 2)).view({kSamples, 4}); }

/// Trains on samples [begin, end) of each step. `exchange` runs around backward(): before it with the output, and after.
std::vector<torch::Tensor> train(torch::nn::Sequential& model, int begin, int end,
                                 const std::function<void(const torch::Tensor&)>& before) {
  const std::vector<torch::Tensor> parameters = model->parameters();
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    const torch::Tensor output = model->forward(sample(step).slice(0, begin, end));
    before(output);
    torch::mse_loss(output, target(step).slice(0, begin, end)).backward();
    const torch::NoGradGuard no_gradients;
    for (const torch::Tensor& parameter : parameters) parameter.sub_(parameter.grad(), 0.1);
  }
  return parameters;
}

TEST_CASE("c10d::Reducer trains over shared memory and over Gloo as one process does, its buckets in shared memory") {
  torch::nn::Sequential alone = make_model();
  const std::vector<torch::Tensor> expected = train(alone, 0, kSamples, [](const torch::Tensor&) {});
  ::setenv("DDP_DISABLE_COMM_MEM", "0", 1);
  for (const char* backend : {"shm", "gloo"})
    for (const int num_ranks : {2, 3})
      run_thread_ranks(num_ranks,
                       [&](Group& group) {
                         torch::nn::Sequential model = make_model();
                         std::vector<torch::Tensor> parameters = model->parameters();
                         // Two buckets, in the order in which gradients come.
                         c10d::Reducer reducer(parameters, {{3, 2}, {1, 0}}, group.process_group(), {false, false, false, false}, 1 << 20,
                                               false, true, {}, 1 << 10, false, false, {});
                         const int share = kSamples / num_ranks;
                         const auto trained = train(model, group.rank() * share, (group.rank() + 1) * share,
                                                    [&](const torch::Tensor& output) { reducer.prepare_for_backward({output}); });
                         for (size_t i = 0; i < trained.size(); ++i)
                           if (!torch::allclose(trained[i], expected[i], 1e-5, 1e-6))
                             FAIL("parameter " << i << " on rank " << group.rank());
                         if (const auto arena = GroupInternals::arena(group)) {
                           size_t offset = 0;
                           for (const torch::Tensor& parameter : parameters)
                             if (!arena->offset_of(parameter.grad().data_ptr(), parameter.grad().nbytes(), &offset))
                               FAIL("a gradient is not in shared memory");
                         }
                         group.barrier();
                       },
                       {.backend = backend, .timeout_seconds = 20});
  ::unsetenv("DDP_DISABLE_COMM_MEM");
}

}  // namespace
}  // namespace cohort
