#include "cohort/train/optimizer.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include "cohort/base/error.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

nn::Sequential build() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(7, 9), nn::Tanh(), nn::Linear(9, 4));
}

/// Ten steps with our optimizer and with LibTorch's on equal models; the largest relative difference of a parameter.
double difference_to_libtorch(const Config& config,
                              const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  nn::Sequential ours = build(), theirs = build();
  Optimizer optimizer(config, distinct_parameters(*ours));
  const std::unique_ptr<torch::optim::Optimizer> reference = make(theirs->parameters());
  for (int step = 0; step < 10; ++step) {
    const torch::Tensor x = torch::randn({5, 7}), y = torch::randn({5, 4});
    optimizer.zero_grad();
    reference->zero_grad();
    (ours->forward(x) - y).pow(2).mean().backward();
    (theirs->forward(x) - y).pow(2).mean().backward();
    optimizer.step(config.lr);
    reference->step();
  }
  double worst = 0;
  const auto a = ours->parameters(), b = theirs->parameters();
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, ((a[i] - b[i]).abs().max() / b[i].abs().max()).item<double>());
  return worst;
}

TEST_CASE("the fused kernels follow LibTorch's own optimizers") {
  Config config;
  config.lr = 0.05;
  for (const double weight_decay : {0.0, 0.01}) {
    config.weight_decay = weight_decay;
    using Parameters = std::vector<at::Tensor>;
    for (const auto& [name, momentum, nesterov] :
         {std::tuple{"sgd", 0.0, false}, std::tuple{"momentum", 0.9, false}, std::tuple{"nesterov", 0.9, true}}) {
      config.optimizer = name;
      const double worst = difference_to_libtorch(config, [&, momentum = momentum, nesterov = nesterov](Parameters parameters) {
        return std::make_unique<torch::optim::SGD>(
            parameters, torch::optim::SGDOptions(0.05).momentum(momentum).nesterov(nesterov).weight_decay(weight_decay));
      });
      CHECK_MESSAGE(worst < 2e-6, name);
    }
    config.optimizer = "adam";
    CHECK(difference_to_libtorch(config, [&](Parameters parameters) {
            return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05).weight_decay(weight_decay));
          }) < 2e-5);
    config.optimizer = "adamw";
    CHECK(difference_to_libtorch(config, [&](Parameters parameters) {
            return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.05).weight_decay(weight_decay));
          }) < 2e-5);
  }
}

TEST_CASE("a parameter without gradient keeps its value and its state") {
  for (const char* name : {"momentum", "adam"}) {
    Config config;
    config.optimizer = name;
    config.weight_decay = 0.1;
    nn::Sequential model = build();
    Optimizer optimizer(config, distinct_parameters(*model));
    model->forward(torch::ones({1, 7})).sum().backward();
    model->parameters()[0].mutable_grad() = torch::Tensor();
    const torch::Tensor before = model->parameters()[0].detach().clone();
    optimizer.step(0.1);
    CHECK(torch::equal(model->parameters()[0], before));
    for (const NamedTensor& state : optimizer.state())
      if (state.name.starts_with("0.weight/")) CHECK(state.tensor.abs().sum().item<double>() == 0);
  }
}

TEST_CASE("clipping bounds the global norm and reports the norm before") {
  nn::Sequential model = build();
  Optimizer optimizer(Config{}, distinct_parameters(*model));
  model->forward(torch::ones({3, 7})).pow(2).sum().backward();
  double squares = 0;
  for (const at::Tensor& parameter : model->parameters()) squares += parameter.grad().pow(2).sum().item<double>();
  CHECK(optimizer.clip_gradients(0.5) == doctest::Approx(std::sqrt(squares)));
  CHECK(optimizer.clip_gradients(0) == doctest::Approx(0.5));
  CHECK(optimizer.clip_gradients(100) == doctest::Approx(0.5));
}

TEST_CASE("learning-rate schedules") {
  Config config;
  config.lr = 2;
  config.warmup_steps = 4;
  CHECK(learning_rate_at(config, 0, 104) == doctest::Approx(0.5));
  CHECK(learning_rate_at(config, 3, 104) == doctest::Approx(2));
  CHECK(learning_rate_at(config, 80, 104) == doctest::Approx(2));
  config.schedule_lr = "linear";
  config.lr_end_factor = 0.1;
  CHECK(learning_rate_at(config, 4, 104) == doctest::Approx(2));
  CHECK(learning_rate_at(config, 54, 104) == doctest::Approx(1.1));
  CHECK(learning_rate_at(config, 104, 104) == doctest::Approx(0.2));
  config.schedule_lr = "cosine";
  CHECK(learning_rate_at(config, 54, 104) == doctest::Approx(1.1));
  CHECK(learning_rate_at(config, 29, 104) == doctest::Approx(2 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)))));
}

TEST_CASE("integers cannot be trained") {
  CHECK_THROWS_WITH_AS(Optimizer(Config{}, {{"scrambled", torch::randn({3, 4}).t().set_requires_grad(true)}}),
                       doctest::Contains("scrambled"), Error);
}

}  // namespace
}  // namespace cohort
