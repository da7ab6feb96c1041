#include "cohort/parallel/local/local_steps.h"

#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/torch.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/testing/thread_ranks.h"
#include "cohort/testing/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// One weight w, whose loss is w times a number: the gradient is that number.
struct OneWeightImpl : nn::Module {
  torch::Tensor w;
  explicit OneWeightImpl(double value) { w = register_parameter("w", torch::full({1}, value)); }
};
TORCH_MODULE(OneWeight);

void make_step(Strategy& strategy, const torch::Tensor& w, double gradient, int64_t mine, int64_t all, bool exchange, double rate = 1) {
  strategy.zero_grad();
  strategy.set_samples(mine, all);
  if (mine > 0) (w * gradient).sum().backward();
  strategy.finish_backward();
  strategy.step({.learning_rate = rate, .exchange = exchange});
}

double value_of(const OneWeight& model) { return model->w.item<double>(); }

std::map<std::string, at::Tensor> saved(Strategy& strategy) {
  std::map<std::string, at::Tensor> pieces;
  for (const FlatPiece& piece : strategy.saved_pieces()) pieces[piece.name] = piece.values.clone();
  return pieces;
}

TEST_CASE("local steps: the weights become the average by samples, and nobody waits in between") {
  std::atomic<bool> rank_0_is_done = false;
  run_thread_ranks(2, [&](Group& group) {
    const int rank = group.rank();
    OneWeight model(rank == 0 ? 10 : 99);  // All start with rank 0's.
    LocalSteps strategy(*model, group, {.rule = {.kind = UpdateRule::Kind::kSgd}});
    CHECK(value_of(model) == 10);
    if (rank == 1)
      while (!rank_0_is_done) std::this_thread::yield();  // A message before the exchange would never be answered.
    for (int step = 0; step < 3; ++step) make_step(strategy, model->w, rank == 0 ? 1 : 4, rank == 0 ? 3 : 1, 4, false);
    CHECK(value_of(model) == (rank == 0 ? 7 : -2));
    CHECK(strategy.statistics().num_exchanges == 0);
    rank_0_is_done = true;
    make_step(strategy, model->w, rank == 0 ? 1 : 4, rank == 0 ? 3 : 1, 4, true);
    // Changes of -4 and -16, weighed 3 : 1.
    CHECK(value_of(model) == 3);
    CHECK(strategy.statistics().num_exchanges == 1);
    // A worker without samples in all of a round counts nothing, whatever its weights.
    if (rank == 1) model->w.data_ptr<float>()[0] = std::numeric_limits<float>::infinity();
    make_step(strategy, model->w, 2, rank == 0 ? 4 : 0, 4, true);
    CHECK(value_of(model) == 1);
  });
}

TEST_CASE("local steps: diloco is algorithm 1 of its paper, and each worker keeps its own momentum") {
  constexpr double kRate = 0.5, kMomentum = 0.8, kInner = 0.9, kStep = 0.25;
  const std::vector<std::vector<double>> gradients{{1, -2, 3, 0.5, 2, 1}, {4, 1, -1, 2, 0, 3}};
  run_thread_ranks(2, [&](Group& group) {
    OneWeight model(1);
    LocalSteps strategy(*model, group,
                        {.rule = {.kind = UpdateRule::Kind::kMomentum, .momentum = kInner}, .outer = OuterOptimizer{kRate, kMomentum}});
    double outer = 1, velocity = 0;
    std::vector<double> inner{0, 0};
    for (size_t round = 0; round < 3; ++round) {
      std::vector<double> weights{outer, outer};
      for (size_t step = 2 * round; step < 2 * round + 2; ++step) {
        make_step(strategy, model->w, gradients[static_cast<size_t>(group.rank())][step], 2, 4, step % 2 == 1, kStep);
        for (size_t rank = 0; rank < 2; ++rank) {
          inner[rank] = kInner * inner[rank] + gradients[rank][step];
          weights[rank] -= kStep * inner[rank];
        }
      }
      const double outer_gradient = outer - (weights[0] + weights[1]) / 2;
      velocity = kMomentum * velocity + outer_gradient;
      outer -= kRate * (outer_gradient + kMomentum * velocity);
      CHECK(value_of(model) == doctest::Approx(outer).epsilon(1e-5));
    }
    const auto pieces = saved(strategy);
    const std::string own = concat("worker-", group.rank(), "/optimizer/w/momentum");
    REQUIRE(pieces.contains(own));
    CHECK(pieces.at(own).item<double>() == doctest::Approx(inner[static_cast<size_t>(group.rank())]).epsilon(1e-5));
    CHECK(pieces.contains("model/w") == (group.rank() == 0));
    CHECK(pieces.contains("outer/optimizer/w/momentum") == (group.rank() == 0));
    if (group.rank() == 0) CHECK(pieces.at("outer/optimizer/w/momentum").item<double>() == doctest::Approx(velocity).epsilon(1e-5));
  });
}

/// Some steps of a small net with uneven shares; what the weights are then.
std::vector<at::Tensor> train(Group& group, const StrategyOptions& options, int steps, int every) {
  nn::Linear net{nullptr};
  at::Tensor x, y;
  {
    const SeededDraws draws(5);  // One thread at a time.
    net = nn::Linear(6, 4);
    x = torch::randn({steps, 12, 6}), y = torch::randn({steps, 12, 4});
  }
  const std::unique_ptr<Strategy> strategy = make_strategy(*net, group, options);
  const int64_t begin = group.rank() == 0 ? 0 : 8, mine = group.size() == 1 ? 12 : group.rank() == 0 ? 8 : 4;
  for (int step = 0; step < steps; ++step) {
    strategy->zero_grad();
    strategy->set_samples(mine, 12);
    const at::Tensor loss = (net(x[step].narrow(0, begin, mine)) - y[step].narrow(0, begin, mine)).square().sum();
    (loss / static_cast<double>(is_local(options.sync) ? mine : 12)).backward();
    strategy->finish_backward();
    strategy->step({.learning_rate = 0.05, .exchange = (step + 1) % every == 0});
  }
  return {net->weight.detach().clone(), net->bias.detach().clone()};
}

double apart(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

TEST_CASE("local steps: an average after every step of what is linear is data parallelism; a later one, Adam and an outer step are not") {
  run_thread_ranks(2, [&](Group& group) {
    const UpdateRule sgd{.kind = UpdateRule::Kind::kSgd}, momentum{.kind = UpdateRule::Kind::kMomentum};
    const auto step = train(group, {.rule = sgd, .share_weights = false}, 6, 1);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("local:1")}, 6, 1)) < 1e-6);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("diloco:1"), .outer_lr = 1, .outer_momentum = 0}, 6, 1)) < 1e-6);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("local:3")}, 6, 3)) > 1e-5);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("diloco:1")}, 6, 1)) > 1e-3);
    // Linear in its state too, which starts alike: the average of the workers' momenta is that of the average gradient.
    const auto with_momentum = train(group, {.rule = momentum, .share_weights = false}, 6, 1);
    CHECK(apart(with_momentum, train(group, {.rule = momentum, .sync = parse_sync("local:1")}, 6, 1)) < 1e-6);
    const UpdateRule adam{.kind = UpdateRule::Kind::kAdam};
    CHECK(apart(train(group, {.rule = adam, .share_weights = false}, 6, 1),
                train(group, {.rule = adam, .sync = parse_sync("local:1")}, 6, 1)) > 1e-4);
  });
}

TEST_CASE("local steps: one worker is plain training, bit by bit") {
  Group alone;
  const UpdateRule rule{.kind = UpdateRule::Kind::kAdam};
  CHECK(apart(train(alone, {.rule = rule}, 6, 1), train(alone, {.rule = rule, .sync = parse_sync("local:3")}, 6, 3)) == 0);
}

TEST_CASE("local steps: compressed changes leave all workers the same bits, near those that are not compressed") {
  run_thread_ranks(3, [&](Group& group) {
    const StrategyOptions plain{.rule = {.kind = UpdateRule::Kind::kSgd}, .sync = parse_sync("diloco:2")};
    const auto exact = train(group, plain, 12, 2);
    for (const std::string compress : {"none", "fp16", "int8"}) {
      CAPTURE(compress);
      StrategyOptions options = plain;
      options.compress = compress;
      const auto mine = train(group, options, 12, 2);
      CHECK(apart(mine, exact) < (compress == "none" ? 1e-12 : compress == "fp16" ? 2e-3 : 2e-2));
      CHECK((apart(mine, exact) == 0) == (compress == "none"));
      std::string bits;
      for (const at::Tensor& tensor : mine) bits.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
      for (const std::string& others : group.all_gather_text(bits, "weights")) CHECK(others == bits);
    }
  });
}

TEST_CASE("local steps: batch norm's running statistics are averaged by samples at an exchange, and counters stay") {
  run_thread_ranks(2, [&](Group& group) {
    nn::BatchNorm1d norm(2);
    LocalSteps strategy(*norm, group, {.rule = {.kind = UpdateRule::Kind::kSgd}});
    const int64_t mine = group.rank() == 0 ? 6 : 2;
    for (int step = 0; step < 2; ++step) {
      strategy.zero_grad();
      strategy.set_samples(mine, 8);
      norm(torch::full({mine, 2}, group.rank() == 0 ? 1.0 : 5.0)).sum().backward();
      strategy.finish_backward();
      strategy.step({.learning_rate = 0, .exchange = step == 1});
    }
    // After two updates by 0.1 each is 0.19 of what it saw.
    CHECK(norm->running_mean[0].item<double>() == doctest::Approx(0.19 * (6 * 1.0 + 2 * 5.0) / 8));
    CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
  });
}

TEST_CASE("local steps: what was saved is taken up again, each worker its own, bit by bit") {
  run_thread_ranks(2, [&](Group& group) {
    const LocalStepsOptions options{.rule = {.kind = UpdateRule::Kind::kAdam}, .outer = OuterOptimizer{}, .compress = "int8"};
    const double gradient = group.rank() == 0 ? 1.5 : -0.25;
    OneWeight straight(1), resumed(1);
    LocalSteps first(*straight, group, options), second(*resumed, group, options);
    for (int step = 0; step < 4; ++step) make_step(first, straight->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
    std::map<std::string, at::Tensor> all = saved(first);
    // Rank 0 has what all share.
    const at::Tensor shared = at::zeros({2});
    if (group.rank() == 0) shared[0] = all.at("model/w")[0], shared[1] = all.at("outer/optimizer/w/momentum")[0];
    group.broadcast(shared, 0, "what all share");
    all["model/w"] = shared.narrow(0, 0, 1).clone(), all["outer/optimizer/w/momentum"] = shared.narrow(0, 1, 1).clone();
    for (FlatPiece& piece : second.loaded_pieces()) {
      CAPTURE(piece.name);
      REQUIRE(all.contains(piece.name));
      piece.values.copy_(all.at(piece.name));
    }
    second.loaded();
    for (int step = 4; step < 8; ++step) {
      make_step(first, straight->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
      make_step(second, resumed->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
      CHECK(value_of(straight) == value_of(resumed));
    }
  });
}

TEST_CASE("local steps: ranks with different models are refused before the first step") {
  run_thread_ranks(2, [&](Group& group) {
    nn::Linear net(4, group.rank() + 1);
    CHECK_THROWS_AS(LocalSteps(*net, group, {.rule = {.kind = UpdateRule::Kind::kSgd}}), Error);
  });
}

}  // namespace
}  // namespace cohort
