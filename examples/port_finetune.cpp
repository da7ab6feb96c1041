// A port: a trained network gets another head for another task. First only the head is trained, with the rest (the backbone) frozen; then
// all of it, the backbone with a smaller learning rate. The lines that differ from the program for one process end with `// Cohort`: this
// rank's rows of each batch, Parallel, and adopt_model() after parameters were unfrozen. Checks that the weights are those of training in
// one process.
//
// Test: port_finetune
// Test: port_finetune --workers 2
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <sstream>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int kBatch = 31, kWidth = 16, kOldClasses = 5, kClasses = 3, kHeadSteps = 30, kSteps = 60;

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential backbone{nullptr};
  torch::nn::Linear head{nullptr};
  NetImpl() {
    backbone = register_module(
        "backbone", torch::nn::Sequential(torch::nn::Linear(kWidth, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64), torch::nn::ReLU()));
    head = register_module("head", torch::nn::Linear(64, kOldClasses));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(backbone->forward(x)); }
};
TORCH_MODULE(Net);

/// The class of a sample is the largest of its first `num_classes` numbers.
std::pair<torch::Tensor, torch::Tensor> draw_batch(int64_t num_classes) {
  const torch::Tensor x = torch::randn({kBatch, kWidth});
  return {x, x.narrow(1, 0, num_classes).argmax(1)};
}

/// Stands in for a downloaded file: a network that was trained for the first task.
std::string pretrained() {
  torch::manual_seed(1);
  Net net;
  torch::optim::Adam optimizer(net->parameters(), 1e-2);
  for (int step = 0; step < 60; ++step) {
    const auto [x, y] = draw_batch(kOldClasses);
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  std::ostringstream file;
  torch::save(net, file);
  return file.str();
}

torch::Tensor train(cohort::Session& session, const std::string& text, bool prints) {  // Cohort
  torch::manual_seed(2);
  Net net;
  std::istringstream file(text);
  torch::load(net, file);
  net->head = net->replace_module("head", torch::nn::Linear(64, kClasses));
  for (torch::Tensor& parameter : net->backbone->parameters()) parameter.set_requires_grad(false);
  torch::optim::SGD optimizer(net->head->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  cohort::Parallel parallel(*net, session);  // Cohort

  const auto began = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) {
    if (step == kHeadSteps + 1) {
      for (torch::Tensor& parameter : net->backbone->parameters()) parameter.set_requires_grad(true);
      const torch::optim::SGDOptions smaller = torch::optim::SGDOptions(0.01).momentum(0.9);
      optimizer.add_param_group({net->backbone->parameters(), std::make_unique<torch::optim::SGDOptions>(smaller)});
      parallel.adopt_model();  // Cohort
    }
    const auto [x, y] = draw_batch(kClasses);
    const torch::Tensor loss = torch::cross_entropy_loss(net->forward(session.local(x)), session.local(y));  // Cohort
    loss.backward();
    parallel.step(optimizer);                               // Cohort: step(), zero_grad()
    const double mean = session.mean(loss.item<double>());  // Cohort
    if (prints && step % 10 == 0) std::printf("step %d loss %.6f\n", step, mean);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / kSteps);
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);  // Cohort
  const std::string file = pretrained();
  const torch::Tensor found = train(session, file, session.is_first());  // Cohort

  // Not part of the port: training in one process, repeated on every rank, must give the same weights.
  cohort::Session alone{cohort::World()};
  torch::set_num_threads(1);  // All ranks compute it at once.
  const double apart = (found - train(alone, file, false)).abs().max().item<double>();
  if (session.is_first()) std::printf("%d ranks: weights are at most %.1e from those of one process\n", session.size(), apart);
  return apart < 1e-4 ? 0 : 1;
}
