// A training program for one process that trains on many ranks. cohort::init() joins what launched it (mpirun, torchrun, srun, cohort
// launch), or starts --workers ranks of itself; session.local() is this rank's part of a batch; Parallel makes the gradient the mean over
// the whole batch. Under --layout zero=1, 2, 3 the same loop divides optimizer state, gradients and weights. Saves a checkpoint in the
// middle, resumes from it, and checks that the weights are those of training in one process.
//
//   session_loop --workers 2                 session_loop --workers 2 --layout zero=2
//
// Test: session_loop
// Test: session_loop --workers 2
// Test: session_loop --workers 3 --layout zero=3
// Test: mpirun -n 2 session_loop --layout zero=1
// Test: session_loop --workers 2 --ours
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cohort/cohort.h"

namespace {

constexpr int64_t kBatch = 30, kWidth = 32;
constexpr int kSteps = 40;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, last{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, 64));
    last = register_module("last", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))).squeeze(1); }
};
TORCH_MODULE(Net);

/// Batch `step`, the same on every rank; the last one is smaller.
std::pair<torch::Tensor, torch::Tensor> batch(int step) {
  torch::manual_seed(1000 + static_cast<uint64_t>(step));
  const torch::Tensor x = torch::randn({step + 1 == kSteps ? kBatch - 11 : kBatch, kWidth});
  return {x, torch::sin(x.narrow(1, 0, 1)).squeeze(1)};
}

/// The same training in one process, repeated on every rank.
torch::Tensor expected() {
  torch::manual_seed(1);
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch(step);
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  }
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

torch::Tensor train(cohort::Session& session, bool ours) {
  const torch::optim::AdamWOptions rule(1e-2);
  const std::string folder = (std::filesystem::temp_directory_path() /
                              ("session_loop-" + std::to_string(session.size()) + session.layout() + (ours ? "-ours" : "")))
                                 .string();
  torch::Tensor weights;
  int step = 0;
  for (const int end : {kSteps / 2, kSteps}) {  // The second time a new model resumes from the checkpoint.
    torch::manual_seed(1);
    Net net;
    torch::optim::AdamW optimizer(net->parameters(), rule);
    cohort::ParallelOptions options;
    if (ours) options.optimizer = rule;
    cohort::Parallel parallel(*net, session, options);
    if (step > 0) step = static_cast<int>(parallel.load(folder, ours ? nullptr : &optimizer));
    for (; step < end; ++step) {
      const auto [x, y] = batch(step);
      const torch::Tensor loss = torch::mse_loss(net->forward(session.local(x)), session.local(y));
      loss.backward();
      if (ours) parallel.step({.clip_norm = 0.5});
      else parallel.step(optimizer, {.clip_norm = 0.5});
      const double mean = session.mean(loss.item<double>());
      if (session.is_first() && step % 10 == 0) std::printf("step %d loss %.4f\n", step, mean);
    }
    parallel.save(folder, step, ours ? nullptr : &optimizer);
    parallel.gather_weights();
    weights = torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
  }
  session.barrier();
  if (session.is_first()) std::filesystem::remove_all(folder);
  return weights;
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);
  const bool ours = (argc > 1 && std::strcmp(argv[1], "--ours") == 0) || session.layout().starts_with("zero");
  const torch::Tensor found = train(session, ours), wanted = expected();
  const double apart = (found - wanted).abs().max().item<double>();
  if (session.is_first()) std::printf("%d ranks: weights are at most %.1e from those of one process\n", session.size(), apart);
  return apart < 1e-4 ? 0 : 1;
}
