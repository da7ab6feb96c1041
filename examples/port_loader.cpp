// A port: the shape of LibTorch's own MNIST example, a convolutional network on torch::data::make_data_loader with two threads that read
// ahead, several epochs, a smaller last batch, and a test loop. The lines that differ from the program for one process end with
// `// Cohort`: the loaders get a LoaderSampler, each step declares how many samples its rows are, and sums are over all ranks. Ends with
// the weights that one process gets.
//
// Test: port_loader
// Test: port_loader --workers 2
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int64_t kSide = 14, kClasses = 10, kTrain = 500, kTest = 155, kBatch = 32, kEpochs = 3;

/// Synthetic digits instead of MNIST's: bars of ten lengths, and noise.
struct Bars : torch::data::datasets::Dataset<Bars> {
  torch::Tensor images, labels;
  Bars(int64_t count, uint64_t seed) {
    torch::manual_seed(seed);
    labels = torch::randint(kClasses, {count}, torch::kLong);
    const torch::Tensor bar = (torch::arange(kSide) <= labels.unsqueeze(1)).to(torch::kFloat).view({count, 1, 1, kSide});
    images = bar + 0.3 * torch::randn({count, 1, kSide, kSide});
  }
  torch::data::Example<> get(size_t index) override { return {images[static_cast<int64_t>(index)], labels[static_cast<int64_t>(index)]}; }
  std::optional<size_t> size() const override { return static_cast<size_t>(labels.size(0)); }
};

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Conv2d(1, 8, 3));
    second = register_module("second", torch::nn::Conv2d(8, 16, 3));
    last = register_module("last", torch::nn::Linear(16 * 4, kClasses));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(first(x)), 2);
    x = torch::max_pool2d(torch::relu(second(x)), 2);
    return torch::log_softmax(last(x.flatten(1)), 1);
  }
};
TORCH_MODULE(Net);

/// Returns the weights.
torch::Tensor train(cohort::Session& session, bool prints) {  // Cohort
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  cohort::Parallel parallel(*net, session);  // Cohort
  auto train_data = Bars(kTrain, 3).map(torch::data::transforms::Stack<>());
  auto test_data = Bars(kTest, 4).map(torch::data::transforms::Stack<>());
  const auto options = torch::data::DataLoaderOptions().batch_size(kBatch).workers(2);
  cohort::LoaderSampler sampler(session, kTrain), test_sampler(session, kTest, {.shuffle = false});  // Cohort: RandomSampler
  auto train_loader = torch::data::make_data_loader(std::move(train_data), sampler, options);
  auto test_loader = torch::data::make_data_loader(std::move(test_data), test_sampler, options);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto began = std::chrono::steady_clock::now();
    int64_t num_steps = 0;
    for (auto& batch : *train_loader) {
      session.set_samples(batch.data.size(0));  // Cohort: the last batch has 20 samples
      torch::nll_loss(net->forward(batch.data), batch.target).backward();
      parallel.step(optimizer);  // Cohort: optimizer.step(), zero_grad()
      ++num_steps;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    torch::NoGradGuard no_grad;
    double loss = 0, num_right = 0;
    for (auto& batch : *test_loader) {
      const torch::Tensor output = net->forward(batch.data);
      loss += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum).item<double>();
      num_right += output.argmax(1).eq(batch.target).sum().item<double>();
    }
    loss = session.sum(loss), num_right = session.sum(num_right);  // Cohort
    if (prints) std::printf("epoch %d: test loss %.6f, %.0f of %d right\n", static_cast<int>(epoch), loss / kTest, num_right, int{kTest});
    if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / static_cast<double>(num_steps));
  }
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);              // Cohort
  const torch::Tensor found = train(session, session.is_first());  // Cohort

  // Not part of the port: training in one process, repeated on every rank, must give the same weights.
  cohort::Session alone{cohort::World()};
  torch::set_num_threads(1);  // All ranks compute it at once.
  const double apart = (found - train(alone, false)).abs().max().item<double>();
  if (session.is_first()) std::printf("%d ranks: weights are at most %.1e from those of one process\n", session.size(), apart);
  return apart < 1e-4 ? 0 : 1;
}
