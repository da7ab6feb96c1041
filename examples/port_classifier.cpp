// A port: a residual network that classifies pictures, with its own data set, gradient accumulation, clipping, a falling learning
// rate and a checkpoint in the middle. The lines that differ from the program for one process end with `// Cohort`: rows come from a
// SessionSampler, Parallel steps (and clips), the printed loss is that of all ranks, batch norm sees the whole batch, and the checkpoint
// is one for any number of ranks. Checks that the weights are those of training in one process.
//
// Test: port_classifier
// Test: port_classifier --workers 2
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cohort/cohort.h"  // Cohort

namespace {

constexpr int kSamples = 500, kClasses = 4, kSide = 12, kBatch = 31, kAccumulate = 2, kSteps = 36;

/// Stripes in one of four directions, and noise.
struct Stripes : torch::data::datasets::Dataset<Stripes> {
  torch::Tensor images, labels;
  Stripes() {
    torch::manual_seed(7);
    labels = torch::randint(kClasses, {kSamples}, torch::kLong);
    const torch::Tensor angle = (labels * (M_PI / kClasses)).view({-1, 1, 1, 1}), side = torch::linspace(-3, 3, kSide);
    const torch::Tensor along = torch::cos(angle) * side.view({1, 1, 1, -1}) + torch::sin(angle) * side.view({1, 1, -1, 1});
    images = torch::sin(2 * along + 6 * torch::rand({kSamples, 1, 1, 1})) + 0.5 * torch::randn({kSamples, 1, kSide, kSide});
  }
  torch::data::Example<> get(size_t index) override { return {images[static_cast<int64_t>(index)], labels[static_cast<int64_t>(index)]}; }
  std::optional<size_t> size() const override { return kSamples; }
};

struct BlockImpl : torch::nn::Module {
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d first_norm{nullptr}, second_norm{nullptr};
  explicit BlockImpl(int64_t channels) {
    const auto convolution = torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false);
    first = register_module("first", torch::nn::Conv2d(convolution));
    first_norm = register_module("first_norm", torch::nn::BatchNorm2d(channels));
    second = register_module("second", torch::nn::Conv2d(convolution));
    second_norm = register_module("second_norm", torch::nn::BatchNorm2d(channels));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(x + second_norm(second(torch::relu(first_norm(first(x)))))); }
};
TORCH_MODULE(Block);

torch::nn::Sequential make_resnet() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)), Block(16), torch::nn::MaxPool2d(2),
                               Block(16), torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(), torch::nn::Linear(16, kClasses));
}

/// Trains until step `end`, from the checkpoint in `folder` if there is one. Returns the weights.
torch::Tensor train(cohort::Session& session, int64_t end, const std::string& folder, bool prints) {  // Cohort
  torch::manual_seed(1);
  torch::nn::Sequential net = make_resnet();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto data = Stripes().map(torch::data::transforms::Stack<>());
  cohort::Parallel parallel(*net, session, {.sync_batch_norm = true});  // Cohort
  cohort::SessionSampler sampler(session, kSamples, kBatch);            // Cohort: in place of a DataLoader
  int64_t step = 0;
  if (!folder.empty()) step = std::max<int64_t>(0, parallel.load(folder, &optimizer));  // Cohort: torch::load
  const auto began = std::chrono::steady_clock::now();
  const int64_t first = step;
  for (; step < end; ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(step < kSteps / 2 ? 0.05 : 0.01);
    const std::vector<int64_t> rows = sampler.next(step);                              // Cohort
    const auto batch = data.get_batch(std::vector<size_t>(rows.begin(), rows.end()));  // Cohort
    const torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
    const bool is_last = (step + 1) % kAccumulate == 0;
    const auto hold = is_last ? nullptr : parallel.accumulate();  // Cohort
    session.backward(loss / kAccumulate);                         // Cohort: (loss / kAccumulate).backward()
    if (is_last) parallel.step(optimizer, {.clip_norm = 1});      // Cohort: clip_grad_norm_(), step(), zero_grad()
    const double mean = session.mean(loss.item<double>());        // Cohort
    if (prints && step % 8 == 7) std::printf("step %2d loss %.6f\n", static_cast<int>(step) + 1, mean);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (prints) std::printf("%.3f ms a step\n", 1e3 * seconds / static_cast<double>(end - first));
  if (!folder.empty()) parallel.save(folder, step, &optimizer);  // Cohort: torch::save
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

}  // namespace

int main(int argc, char** argv) {
  cohort::Session session = cohort::init(argc, argv);  // Cohort
  const auto folder = std::filesystem::temp_directory_path() / ("port_classifier-" + std::to_string(session.size()));
  if (session.is_first()) std::filesystem::remove_all(folder);                     // Cohort: on the first rank alone
  session.barrier();                                                               // Cohort
  train(session, kSteps / 2, folder, session.is_first());                          // Cohort
  const torch::Tensor found = train(session, kSteps, folder, session.is_first());  // Cohort
  if (session.is_first()) std::filesystem::remove_all(folder);                     // Cohort

  // Not part of the port: training in one process, repeated on every rank without a checkpoint, must give the same weights.
  cohort::Session alone{cohort::World()};
  torch::set_num_threads(1);  // All ranks compute it at once.
  const double apart = (found - train(alone, kSteps, "", false)).abs().max().item<double>();
  if (session.is_first()) std::printf("%d ranks: weights are at most %.1e from those of one process\n", session.size(), apart);
  return apart < 1e-3 ? 0 : 1;
}
