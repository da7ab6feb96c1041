#include "cohort/parallel/strategy/replicated.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

nn::Sequential build() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(7, 9), nn::Tanh(), nn::Linear(9, 4));
}

/// Ten steps with our optimizer and with LibTorch's on equal models; the largest relative difference of a parameter.
double difference_to_libtorch(const UpdateRule& rule,
                              const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  nn::Sequential ours = build(), theirs = build();
  Replicated strategy(*ours, Group(), rule);
  const std::unique_ptr<torch::optim::Optimizer> reference = make(theirs->parameters());
  for (int step = 0; step < 10; ++step) {
    const torch::Tensor x = torch::randn({5, 7}), y = torch::randn({5, 4});
    strategy.zero_grad();
    reference->zero_grad();
    (ours->forward(x) - y).pow(2).mean().backward();
    (theirs->forward(x) - y).pow(2).mean().backward();
    strategy.step({.learning_rate = 0.05});
    reference->step();
  }
  double worst = 0;
  const auto a = ours->parameters(), b = theirs->parameters();
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, ((a[i] - b[i]).abs().max() / b[i].abs().max()).item<double>());
  return worst;
}

TEST_CASE("the update rules follow LibTorch's own optimizers") {
  using Kind = UpdateRule::Kind;
  UpdateRule rule;
  for (const double weight_decay : {0.0, 0.01}) {
    rule.weight_decay = weight_decay;
    using Parameters = std::vector<at::Tensor>;
    for (const auto& [kind, momentum, nesterov] :
         {std::tuple{Kind::kSgd, 0.0, false}, std::tuple{Kind::kMomentum, 0.9, false}, std::tuple{Kind::kNesterov, 0.9, true}}) {
      rule.kind = kind;
      const double worst = difference_to_libtorch(rule, [&, momentum = momentum, nesterov = nesterov](Parameters parameters) {
        return std::make_unique<torch::optim::SGD>(
            parameters, torch::optim::SGDOptions(0.05).momentum(momentum).nesterov(nesterov).weight_decay(weight_decay));
      });
      CHECK_MESSAGE(worst < 2e-6, static_cast<int>(kind));
    }
    rule.kind = Kind::kAdam;
    CHECK(difference_to_libtorch(rule, [&](Parameters parameters) {
            return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05).weight_decay(weight_decay));
          }) < 2e-5);
    rule.kind = Kind::kAdamW;
    CHECK(difference_to_libtorch(rule, [&](Parameters parameters) {
            return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.05).weight_decay(weight_decay));
          }) < 2e-5);
  }
}

TEST_CASE("a parameter without gradient keeps its value and its state") {
  for (const UpdateRule::Kind kind : {UpdateRule::Kind::kMomentum, UpdateRule::Kind::kAdam}) {
    UpdateRule rule;
    rule.kind = kind;
    rule.weight_decay = 0.1;
    nn::Sequential model = build();
    Replicated strategy(*model, Group(), rule);
    model->forward(torch::ones({1, 7})).sum().backward();
    model->parameters()[0].mutable_grad() = torch::Tensor();
    const torch::Tensor before = model->parameters()[0].detach().clone();
    strategy.step({.learning_rate = 0.1});
    CHECK(torch::equal(model->parameters()[0], before));
    for (const FlatPiece& piece : strategy.saved_pieces())
      if (piece.name.starts_with("optimizer/0.weight/")) CHECK(piece.values.abs().sum().item<double>() == 0);
  }
}

TEST_CASE("clipping bounds the global norm and reports the norm before; gradient_factor comes first") {
  for (const double factor : {1.0, 0.25}) {
    nn::Sequential model = build();
    UpdateRule rule;
    Replicated strategy(*model, Group(), rule);
    model->forward(torch::ones({3, 7})).pow(2).sum().backward();
    double squares = 0;
    std::vector<torch::Tensor> expected;
    for (const at::Tensor& parameter : model->parameters()) squares += (factor * parameter.grad()).pow(2).sum().item<double>();
    const double norm = std::sqrt(squares), kept = std::min(1.0, 0.5 / norm);
    for (const at::Tensor& parameter : model->parameters()) expected.push_back(parameter.detach() - 0.1 * kept * factor * parameter.grad());
    strategy.set_gradient_factor(factor);
    CHECK(strategy.step({.learning_rate = 0.1, .clip_norm = 0.5}).gradient_norm == doctest::Approx(norm));
    for (size_t i = 0; i < expected.size(); ++i) CHECK(torch::allclose(model->parameters()[i], expected[i]));
  }
}

TEST_CASE("pruned weights are zero behind every update, with their state; all others are what they would be") {
  using Kind = UpdateRule::Kind;
  for (const Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kNesterov, Kind::kAdam, Kind::kAdamW}) {
    UpdateRule rule;
    rule.kind = kind;
    rule.momentum = 0.9;
    rule.weight_decay = 0.01;
    torch::manual_seed(12);
    constexpr int64_t kCount = 10'007;  // Several tiles, the last one short.
    const torch::Tensor start = torch::randn({kCount}), pruned = torch::rand({kCount}) < 0.4, later = torch::rand({kCount}) < 0.3;
    const torch::Tensor plain = start.clone(), held = start.masked_fill(pruned, 0), summed = held.clone();
    ShardOptimizer free(rule, {{"w", {kCount}, 0, plain}}), one(rule, {{"w", {kCount}, 0, held}}), sums(rule, {{"w", {kCount}, 0, summed}});
    one.keep_zeros(0);
    sums.keep_zeros(0);
    for (int step = 0; step < 3; ++step) {
      if (step == 1)
        for (ShardOptimizer* optimizer : {&one, &sums}) optimizer->prune(0, later.logical_not().to(torch::kByte));
      if (step == 2)
        for (ShardOptimizer* optimizer : {&one, &sums}) optimizer->prune(0, {});  // Zeros alone say what is pruned from here on.
      const torch::Tensor left = torch::randn({kCount}), right = torch::randn({kCount}), sum = left + right;
      free.update(0, sum, 0.05, 1);
      one.update(0, sum, 0.05, 1);
      sums.begin_update(0);
      sums.update_by_sum(0, {static_cast<std::byte*>(left.data_ptr()), static_cast<std::byte*>(right.data_ptr())}, 0.05, 1);
      const torch::Tensor gone = step == 0 ? pruned : pruned.logical_or(later);
      CHECK(torch::equal(held, plain.masked_fill(gone, 0)));
      CHECK(torch::equal(summed, held));
      for (ShardOptimizer* optimizer : {&one, &sums})
        for (const FlatPiece& piece : optimizer->state(true))
          if (!piece.name.ends_with("/step")) CHECK(piece.values.masked_select(gone).abs().sum().item<double>() == 0);
    }
  }
}

TEST_CASE("what cannot be updated is refused by name") {
  nn::Linear scrambled(3, 4);
  scrambled->weight.set_data(torch::randn({3, 4}).t());
  CHECK_THROWS_WITH_AS(Replicated(*scrambled, Group(), UpdateRule{}), doctest::Contains("weight"), Error);
  nn::Linear half(3, 4);
  half->to(torch::kBFloat16);
  CHECK_THROWS_WITH_AS(Replicated(*half, Group(), UpdateRule{}), doctest::Contains("--precision"), Error);
}

}  // namespace
}  // namespace cohort
