// One loop, every layout: a torch::nn::Sequential whose layers Cohort cuts into the stages of a pipeline, or divides between ranks, or
// copies. forward_backward() replaces forward, loss and backward(), because a pipeline interleaves the forward and backward of its
// micro-batches. Ends with a comparison with the same loop in one process (in double precision, so that differences from the order of sums
// stay small).
//
//   any_layout --workers 2 --layout tp=2                        any_layout --workers 4 --layout dp=2,pp=2,microbatches=4
//
// Test: any_layout
// Test: any_layout --workers 2
// Test: any_layout --workers 2 --layout tp=2
// Test: any_layout --workers 4 --layout dp=2,pp=2,microbatches=4
// Test: mpirun -n 2 any_layout --layout pp=2,microbatches=4,schedule=zb-h1
#include <torch/torch.h>

#include <cstdio>

#include "cohort/cohort.h"

namespace {

constexpr int64_t kBatch = 32, kClasses = 10;
constexpr int kSteps = 100;

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  using namespace torch::nn;  // NOLINT
  Sequential net(Conv2d(Conv2dOptions(1, 8, 3).padding(1)), ReLU(), MaxPool2d(2), Conv2d(Conv2dOptions(8, 16, 3).padding(1)), ReLU(),
                 MaxPool2d(2), Flatten(), Linear(16 * 3 * 3, 64), ReLU(), Linear(64, kClasses));
  net->to(torch::kDouble);
  return net;
}

/// A bright bar, whose position is the class.
std::pair<torch::Tensor, torch::Tensor> batch(int64_t samples, uint64_t seed) {
  torch::manual_seed(seed);
  const torch::Tensor target = torch::randint(kClasses, {samples});
  torch::Tensor pictures = torch::rand({samples, 1, 12, 12}, torch::kDouble);
  for (int64_t i = 0; i < samples; ++i) pictures[i][0].select(0, 1 + target[i].item<int64_t>()).add_(1);
  return {pictures, target};
}

torch::Tensor cross_entropy(const torch::Tensor& output, const torch::Tensor& target) { return torch::cross_entropy_loss(output, target); }

/// The output for `probe` after the same training in one process.
torch::Tensor expected(const torch::Tensor& probe) {
  torch::nn::Sequential net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch(kBatch, 100 + static_cast<uint64_t>(step));
    optimizer.zero_grad();
    cross_entropy(net->forward(x), y).backward();
    optimizer.step();
  }
  return net->forward(probe).detach();
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);
  torch::nn::Sequential net = make_net();
  cohort::Parallel parallel(
      *net, session,
      {.optimizer = torch::optim::SGDOptions(0.05).momentum(0.9), .example = torch::zeros({kBatch, 1, 12, 12}, torch::kDouble)});
  if (session.is_first()) std::printf("%s\n", parallel.describe().c_str());
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch(kBatch, 100 + static_cast<uint64_t>(step));
    const double loss = parallel.forward_backward(session.local(x), session.local(y), cross_entropy);
    parallel.step();
    if (session.is_first() && step % 20 == 0) std::printf("step %d loss %.4f\n", step, loss);
  }
  const auto [probe, classes] = batch(200, 7);
  const torch::Tensor found = parallel.forward(probe).detach();  // Every rank evaluates all rows.
  const double right = found.argmax(1).eq(classes).to(torch::kDouble).mean().item<double>();
  const double apart = (found - expected(probe)).abs().max().item<double>();
  if (session.is_first()) std::printf("%.1f %% right; outputs are at most %.1e from those of one process\n", 100 * right, apart);
  return apart < 1e-6 && right > 0.9 ? 0 : 1;
}
